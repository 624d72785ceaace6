// All rows: every operator's, in the order of the suites and of their tests.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

using Place = std::pair<size_t, size_t>;  // of the suite, of the test in it

std::map<std::pair<std::string, std::string>, Place> Places() {
  std::map<std::pair<std::string, std::string>, Place> places;
  const std::vector<SuiteOrder>& suites = SuiteOrders();
  for (size_t suite = 0; suite < suites.size(); ++suite) {
    size_t group = 0;
    for (const absl::string_view tests : absl::StrSplit(suites[suite].tests, ' ')) {
      for (const absl::string_view test : absl::StrSplit(tests, '+')) {
        places[{suites[suite].suite, std::string(test)}] = {suite, group};
      }
      ++group;
    }
  }
  return places;
}

}  // namespace

const std::vector<SuiteOrder>& SuiteOrders() {
  static const auto* const orders = new std::vector<SuiteOrder>{
      {"layer_ops",
       "projection_row_stable_F32 projection_sequence_gemm_F32 projection_row_stable_BF16 "
       "projection_sequence_gemm_BF16 projection_row_stable_F16 projection_sequence_gemm_F16 qkvz_split_interleaved "
       "qkvz_split_flat causal_conv1d_prefill+causal_conv1d_decode gating_a_log gating_ssm_a qk_l2norm+qk_scale "
       "gated_rmsnorm"},
      {"delta_rule",
       "scan+chunk scan_packed+chunk_packed recurrent_in_place deferred_decode deferred_decode_ragged materialize"},
      {"layer",
       "hidden_states_interleaved_F32+hidden_states_interleaved_BF16+hidden_states_interleaved_F16 "
       "hidden_states_flat_F32+hidden_states_flat_BF16+hidden_states_flat_F16 projected_flat_F32 delta_rule_flat_F32"},
      {"parity",
       "abs_diff squared_diff max_reduce sum_reduce bf16_round_trip l2_normalise l2norm_fwd l2norm_bwd elementwise "
       "cumsum_scalar cumsum_vector index_lengths index_position_ids index_sequence_ids index_chunk_offsets "
       "qkvzba_split conv1d_decode conv1d_prefill recurrent_output recurrent_state sigmoid_gating_recurrent "
       "gating_prefill fused_cumsum_kkt_g fused_cumsum_kkt_A chunk_cumsum chunk_A chunk_solve_in_place chunk_w_u "
       "chunk_state chunk_output solve_16 solve_32 solve_64 wy_kkt"},
      {"phases",
       "sigmoid+exp+mul cumsum tril causal_mask+eye solve_tri_small solve_tri_64 gemm_nt_naive_small gemm_nt_naive_64 "
       "gemm_tn_naive gemm_nt_tiled gemm_nt_tiled_128 decay_mask_small decay_mask_64 attn_matrix_small attn_matrix_64 "
       "attn_pre_computation solve_causal_identity intra_chunk_small intra_chunk state_update output_with_state "
       "deltanet_single_chunk deltanet_full"},
      {"ops",
       "conv1d_token_major conv1d_channel_major gating_a_log gating_ssm_a "
       "scan_scan+scan_chunk+scan_stages+scan_bf16_scan+scan_bf16_chunk+scan_bf16_stages"},
      {"cache",
       "prefill_scan_then_decode+prefill_chunk_then_decode+first_call+fork_over_a_shared_base+"
       "draft_dropped_and_accepted+single_step_on_256_tokens conv1d_split bf16_state"},
      {"llama",
       "gated_delta_net_scan+gated_delta_net_decode+gated_delta_net_draft+gated_delta_net_chunk "
       "gated_delta_net_kda_scan+gated_delta_net_kda_decode+gated_delta_net_kda_draft+gated_delta_net_kda_chunk "
       "ssm_conv_silu"},
      {"kda",
       "scan+chunk scan_packed+chunk_packed recurrent_in_place deferred_decode deferred_decode_ragged materialize "
       "gating mixer_input hidden_states projected delta_rule "
       "delta_rule_scan+delta_rule_chunk+delta_rule_draft prefill_scan_then_decode+prefill_chunk_then_decode"},
      {"extreme", "extreme_gates_scan+extreme_gates_chunk+extreme_gates_decode+extreme_gates_draft"},
      {"fla",
       "fla_recurrent_scan fla_chunk_chunk+fla_chunk_stages fla_chunk_varlen_chunk+fla_chunk_varlen_stages "
       "flashinfer_prefill_chunk+flashinfer_prefill_stages flashinfer_step_scan+flashinfer_step_decode "
       "flashinfer_multi_token_draft"},
  };
  return *orders;
}

std::vector<ParityCase> AllCases() {
  std::vector<ParityCase> cases;
#define GDN_ADD_ROWS(Name) Add##Name##Cases(cases);
  GDN_PARITY_OPERATORS(GDN_ADD_ROWS)
#undef GDN_ADD_ROWS
  const auto places = Places();
  const auto place = [&places](const ParityCase& c) {
    const auto known = places.find({c.suite, c.test});
    return known == places.end() ? Place(SuiteOrders().size(), 0) : known->second;
  };
  std::stable_sort(cases.begin(), cases.end(),
                   [&place](const ParityCase& a, const ParityCase& b) { return place(a) < place(b); });
  return cases;
}

}  // namespace gdn::parity
