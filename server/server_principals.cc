// The principals that a server knows by name, from its file of principals and from its quotas.
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/status_macros.h"
#include "server/gdn_server.h"

namespace gdn {

absl::Status GdnServer::ListPrincipals(std::string key) {
  PrincipalList list;
  if (!options_.principals.file.empty()) {
    GDN_ASSIGN_OR_RETURN(list, ReadPrincipalList(options_.principals.file));
    spdlog::info("principals listed={} file={}", list.weights.size(), options_.principals.file);
  }
  listed_weights_ = list.weights;
  principals_ = std::make_unique<Principals>(std::move(key), std::move(list));
  owners_ = std::make_unique<SessionOwners>(*principals_);
  SetQuotas(options_.quotas);
  return absl::OkStatus();
}

void GdnServer::SetQuotas(const QuotaSettings& quotas) {
  std::map<std::string, double> weights = listed_weights_;
  // A principal that is in neither of them any more keeps its account.
  for (const auto& [name, listed] : principal_names_) weights.emplace(listed, 1);
  QuotaSettings by_name = quotas;
  by_name.principals.clear();
  for (const auto& [listed, own] : quotas.principals) {
    double& weight = weights.emplace(listed, 1).first->second;
    weight = own.weight.value_or(weight);
    by_name.principals.emplace(principals_->NameOfListed(listed), own);
  }
  ledger_->SetQuotas(by_name, options_.rate_clock->Now().ToNanos());
  for (const auto& [listed, weight] : weights) {
    const std::string name = principals_->NameOfListed(listed);
    ledger_->List(name, weight);
    owners_->Learn(name, listed);
    engines_->SetWeight(name, weight);
    principal_names_.emplace(name, listed);
  }
}

}  // namespace gdn
