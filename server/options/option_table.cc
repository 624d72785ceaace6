#include "server/options/option_table.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "server/config/quota_section.h"
#include "server/trace/call_tracer.h"

namespace gdn {
namespace {

// A function that returns the member of the options that a row sets.
#define AT(member) \
  [](auto& options) -> auto& { return options.member; }

using enum OptionUse;

template <typename T>
std::pair<const std::string, Option> Row(std::string name, auto member, ValueForm<T> form, std::string help,
                                         OptionUse use = kAtStart) {
  const auto read = [=](std::string_view text, ServerOptions& options) { return form.read(text, member(options)); };
  const auto print = [=](const ServerOptions& options) { return form.print(member(options)); };
  return {std::move(name), {{.read = read, .print = print, .shape = form.shape}, std::move(help), use}};
}

ValueForm<HeadSlice> Heads() {
  return Form<HeadSlice>(
      "expected FIRST-LAST/TOTAL such as 0-15/32, with FIRST <= LAST < TOTAL",
      [](std::string_view text, HeadSlice& heads) {
        const absl::StatusOr<HeadSlice> read = text.empty() ? HeadSlice{} : ParseHeadSlice(text);
        if (read.ok()) heads = *read;
        return read.ok();
      },
      [](const HeadSlice& heads) { return heads.is_whole() ? "" : HeadSliceToString(heads); });
}

ValueForm<LayerRanges> Layers() {
  return Form<LayerRanges>(
      "expected ascending ranges of layers such as 0-23,30, 0 .. 4095",
      [](std::string_view text, LayerRanges& layers) {
        const absl::StatusOr<LayerRanges> read = text.empty() ? LayerRanges{} : ParseLayerRanges(text);
        if (read.ok()) layers = *read;
        return read.ok();
      },
      LayerRangesToString, ValueShape::kList);
}

ValueForm<std::vector<int32_t>> GpuNumbers() {
  using Numbers = std::vector<int32_t>;
  return Form<Numbers>(
      "expected numbers of GPUs such as 0,1, each once, 0 .. 1023",
      [](std::string_view text, Numbers& numbers) {
        std::vector<std::string> elements;
        List().read(text, elements);
        return std::ranges::all_of(elements, [&](const std::string& element) {
          int32_t& number = numbers.emplace_back(-1);
          return absl::SimpleAtoi(element, &number) && number >= 0 && number <= 1023 &&
                 std::ranges::count(numbers, number) == 1;
        });
      },
      [](const Numbers& numbers) { return absl::StrJoin(numbers, ","); }, ValueShape::kList);
}

}  // namespace

// A row: the name, the member that it sets, the form of its values, and its help. scripts/generate_docs.py writes the
// tables of docs/reference/flags.md from these rows, one for each "Group:", with the members' initialisers as defaults.
// If a help text begins with a word in capitals and a colon, the word is the name of the flag's value.
const OptionTable& Options() {
  static const auto* const table = new OptionTable{
      // Group: Configuration file
      Row("config", AT(config), Text(),
          "FILE: YAML file of flags and their values, one a line: `checkpoint-every: 30s`. A flag on the command line "
          "overrides the file. The server reads the file again on SIGHUP and when it changes.",
          kNotInFile),
      Row("check-config", AT(check_config), Switch(),
          "Checks the flags and the file of --config, and exits with code 0, or 1 if something is wrong. Prints all "
          "flags with the values that would apply, in the form of such a file.",
          kNotInFile),

      // Group: Models and addresses
      Row("model", AT(models), Pairs(),
          "NAME=PATH: serve the Gated DeltaNet layers of the checkpoint at PATH as models/NAME. PATH is a Hugging "
          "Face folder or a GGUF file. Repeat the flag for more models. Without models the server offers operator "
          "sessions only.",
          kRepeats),
      Row("adapter", AT(adapters), Pairs(),
          "NAME=PATH: merge the LoRA adapter in the folder PATH into the in- and out-projections of the --model NAME. "
          "The folder is as PEFT saves it (adapter_config.json, adapter_model.safetensors). Repeat the flag for more "
          "models. The adapter changes the model's fingerprint. The server ignores parts of the adapter for other "
          "layers.",
          kRepeats),
      Row("heads", AT(load.heads), Heads(),
          "HEADS: load and serve only these value heads of every layer, with the key heads that they read. The form "
          "is FIRST-LAST/TOTAL: 0-15/32 means the heads 0 to 15 of 32. TOTAL is the number of value heads of each "
          "model. Outputs are then partial sums in float32. Clients add up the outputs of all servers "
          "(docs/how-to/head-slices.md). Empty: all heads."),
      Row("layers", AT(load.layers), Layers(),
          "LAYERS: load and serve only these decoder layers of every model. The form is ranges such as 0-23,30. Each "
          "range must have a Gated DeltaNet layer. Several servers can then share a model's layers "
          "(docs/how-to/head-slices.md). The fingerprint stays the whole model's: the server reads the other layers "
          "once at startup. Empty: all layers."),
      Row("allow-unverified-family", AT(load.allow_unverified_family), Switch(),
          "Serves models of families whose layers have not been compared with a reference implementation: "
          "gigachat3_5, kimi_k3, and the GGUF architectures that docs/reference/models.md lists as unverified."),
      Row("quantize", AT(load.quantize_q8_0), OneOf<bool>({{"q8_0", true}, {"", false}}),
          "q8_0: store the large projections of F32, F16 and BF16 checkpoints as Q8_0 in memory, in a little more "
          "than one byte a weight. Weights that the checkpoint has quantised stay as they are. The flag changes a "
          "model's fingerprint. Empty: no quantisation."),
      Row("listen", AT(listen), List(),
          "ADDRESS: address for gRPC: HOST:PORT or unix:/PATH. Port 0 takes a free port. 0.0.0.0:PORT accepts other "
          "machines (use --tls-cert). A Unix socket accepts only processes of the same user. Repeat the flag for more "
          "addresses.",
          kRepeats),
      Row("http-listen", AT(http_listen), Text(),
          "ADDRESS: address for operators' HTTP: /metrics, /healthz, /readyz, /statusz. 127.0.0.1:9464 accepts this "
          "machine only. For a scraper on another machine, use an address of this machine or 0.0.0.0:9464. Default: "
          "no HTTP port."),
      Row("port-file", AT(port_file), Text(),
          "FILE: file to write the port number to, once the server is ready. It is the port of the first HOST:PORT of "
          "--listen, or 0 without one. The file is written atomically."),

      // Group: Device
      Row("backend", AT(device.backend), OneOf({"auto", "gpu", "cpu", "null"}),
          "gpu, cpu, auto or null. `auto` takes the GPU if there is a usable one, else the CPU; the log tells which, "
          "and why. `null` computes nothing and serves to measure the service itself."),
      Row("gpu-device", AT(device.gpu_device), Whole(0, 1023),
          "N: number of the GPU, counted among those that HIP_VISIBLE_DEVICES leaves."),
      Row("gpu-devices", AT(device.gpu_devices), GpuNumbers(),
          "N,N,..: numbers of several GPUs, instead of --gpu-device. Each GPU loads all models. A session is placed "
          "on a GPU with free space. If a GPU fails, its sessions fail with it, and the other GPUs continue."),
      Row("gpu-graphs", AT(device.gpu_graphs),
          OneOf<GpuGraphs>({{"auto", GpuGraphs::kAuto}, {"on", GpuGraphs::kOn}, {"off", GpuGraphs::kOff}}),
          "on, off or auto: record decode steps that repeat, and replay each with one call to the GPU's runtime. "
          "`auto` measures at startup whether replay is faster; the log tells the result."),
      Row("math", AT(device.math),
          OneOf<ProductMath>(
              {{"exact", ProductMath::kExact}, {"half", ProductMath::kHalf}, {"int8", ProductMath::kInt8}}),
          "exact, half or int8: how projections multiply. int8 rounds inputs to 8 bits if GGUF's weights are "
          "quantised, in blocks of 32 features with a scale, as llama.cpp does. That is faster and errs by about half "
          "a percent. half, on a GPU, rounds plain weights and their inputs to fp16, and inputs of Q8_0 and Q4_K. That "
          "is faster on gfx906 and errs by about 3e-4. Other weights are not affected. The choice is part of "
          "numerics_id."),
      Row("matrix-units", AT(device.matrix_units), OneOf<bool>({{"auto", true}, {"off", false}}),
          "auto or off: whether products run on the GPU's matrix units, if it has them (NVIDIA H100, H200 and "
          "successors). They are as accurate as float32, and faster. With `off` the GPU runs the kernels that gfx906 "
          "runs. The choice is part of numerics_id."),
      Row("threads", AT(device.threads), Whole(0, 1024),
          "N: worker threads of the CPU backend. 0: one for each processor that the process may use."),

      // Group: Memory for session states
      Row("state-dtype", AT(states.state_dtype), OneOf<DType>({{"float32", DType::kF32}, {"bf16", DType::kBF16}}),
          "float32 or bf16: dtype of the stored state matrices. bf16 halves their memory, and rounds to nearest even "
          "at each write. Sums, logs and convolution columns stay float32. The dtype is part of numerics_id. States "
          "from a server with the other dtype are refused, unless ImportState asks to convert them."),
      Row("device-state-bytes", AT(memory.device_state_bytes), Bytes(),
          "BYTES: device memory for session states, for example 8GiB. 0 on a CPU: half of the machine's memory, "
          "committed when it is used. 0 on a GPU: three quarters of the memory that is free once the models are "
          "loaded."),
      Row("state-slots", AT(memory.state_slots), Whole(0),
          "N: number of layer states that fit into device memory, instead of --device-state-bytes. A session has one "
          "for each Gated DeltaNet layer. The size of a layer state is that of the largest --model."),
      Row("host-state-bytes", AT(memory.host_state_bytes), BytesOrAuto(),
          "BYTES: host memory for the states of idle sessions; page-locked if there is a GPU. 0: none. `auto`: a "
          "quarter of the host's memory with a GPU, none on a CPU."),
      Row("prefix-cache-bytes", AT(memory.prefix_cache_bytes), BytesOrAuto(),
          "BYTES: host memory for states of prompt prefixes (KeepPrefix). 0: no prefixes are stored. With "
          "--host-state-bytes, it is a part of that memory, and sessions may evict prefixes. `auto`: half of "
          "--host-state-bytes. If that is 0, a sixteenth of the host's memory. Memory is used only if clients store "
          "prefixes."),
      Row("prefix-ttl", AT(states.prefix_ttl), TimeOrNever(),
          "TIME: delete prefixes that no session has started from for this long. 0: they stay until their memory is "
          "needed."),
      Row("snapshot-bytes", AT(memory.snapshot_bytes), BytesOrAuto(),
          "BYTES: most bytes of all snapshots (SnapshotSession), in whichever tier, each counted as a whole state. "
          "They "
          "do not count against --session-bytes, but they take room in the tiers. Above the limit, the least recently "
          "used snapshots are evicted, of the caller that is furthest over its share first. 0: no snapshots. `auto`: a "
          "quarter of the device and host memory for states together."),
      Row("disk-dir", AT(states.disk.directory), Text(),
          "DIR: folder for the states of idle sessions and for checkpoints. Sessions then survive a restart. Each "
          "server needs a folder of its own."),
      Row("disk-state-bytes", AT(states.disk.limit_bytes), Bytes(),
          "BYTES: most bytes in --disk-dir. 0: no limit but the disk's. Without --redis, checkpoints of a caller over "
          "its share must leave one eighth free (BYTES_EXHAUSTED)."),
      Row("disk-high-watermark", AT(states.disk.watermarks.high_percent), Whole(0, 100),
          "PERCENT: write no new states to the disk while more of the file system of --disk-dir is in use, whoever "
          "uses it. States that are on the disk are still replaced. 0 or 100: no watermark."),
      Row("disk-low-watermark", AT(states.disk.watermarks.low_percent), Whole(0, 100),
          "PERCENT: write new states again once use has fallen to this value, which is below --disk-high-watermark."),
      Row("scrub-bytes-per-second", AT(states.scrub.bytes_per_second), Bytes(),
          "BYTES: bytes of --disk-dir to read each second, to verify the checksums of stored states. The server reads "
          "only while no call or step is running. 0: checksums are verified only when a state is loaded."),
      Row("session-bytes", AT(memory.session_bytes), BytesOrAuto(1 << 20),
          "BYTES: most bytes of all sessions' states, in whichever tier, and of named checkpoints. Callers share them "
          "as they share --call-bytes. Above the limit, sessions are refused with BYTES_EXHAUSTED. `auto`: the device "
          "and host memory for states together, or --disk-state-bytes if that is more. `auto` sets no limit with "
          "--redis, or with --disk-dir without --disk-state-bytes. It also sets none if the device is the only tier "
          "and --principals lists nobody."),
      Row("redis", AT(states.redis.endpoint), Text(),
          "ADDRESS: Redis server for states that find no space on the disk, or for all states without a disk. Forms: "
          "HOST:PORT, unix:/PATH, redis://[USER@]HOST:PORT/DB, or `sentinel://[USER@]HOST:PORT,HOST:PORT,../NAME/DB` "
          "for the master that Sentinels name. If states must survive a crash of Redis, run Redis with `appendonly "
          "yes` and `appendfsync always`."),
      Row("redis-password-file", AT(states.redis.password_file), Text(),
          "FILE: file with the password of --redis. It is read again for each connection, so you can change it while "
          "the server runs."),
      Row("redis-prefix", AT(states.redis.prefix), Text(),
          "TEXT: prefix of all keys in --redis. Without --share-sessions, each server needs its own prefix, because a "
          "server that starts with the prefix of another takes over its sessions."),
      Row("redis-wait-replicas", AT(states.redis.wait.replicas), Whole(0, 64),
          "N: number of replicas of --redis that must have a checkpoint before it counts as made (WAIT). A failover "
          "to one of them then loses nothing. 0: none."),
      Row("redis-wait-timeout", AT(states.redis.wait.timeout), Time(absl::Milliseconds(1), absl::Milliseconds(4999)),
          "TIME: time for the replicas of --redis-wait-replicas to get a checkpoint, less than 5s. If they take "
          "longer, the checkpoint is tried again."),
      Row("principals", AT(principals.file), Text(),
          "FILE: JSON list of callers with their own shares of memory and time, by weight: `{\"principals\": "
          "[{\"name\": NAME, \"sha256\": [HASH, ..], \"weight\": 1}]}`. HASH is the SHA-256 of the whole "
          "authorization value or TLS identity. All other callers together have one share of weight 1, split by the "
          "address that they call from. Sessions belong to the name, so you can change tokens. List a principal "
          "before it has sessions: sessions that it created earlier belong to its token."),
      Row("principal-key-file", AT(principals.key_file), Text(),
          "FILE: secret of 16 bytes or more. The server stores callers under names that it derives from the secret "
          "(HMAC-SHA-256). Default: the server makes a secret. It stores the secret in --disk-dir (principal-key, "
          "readable by its owner only), else in --redis, else in memory only. Servers that take over each other's "
          "sessions need the same secret."),

      // Group: Several servers
      Row("share-sessions", AT(states.redis.share_sessions), Switch(),
          "Shares the sessions of one --redis and --redis-prefix with other servers that have this flag. A session is "
          "on one server at a time, and moves to the server that is called for it (docs/how-to/fleet.md). Checkpoints "
          "and idle sessions are stored in Redis, without --disk-dir."),
      Row("node-name", AT(states.redis.node_name), Text(),
          "NAME: the server's name in messages to other servers. Default: the machine's name and the process id."),
      Row("node-lease", AT(fleet.lease), Time(absl::Seconds(2), absl::Hours(1)),
          "TIME: length of the server's lease on its sessions, 2s .. 1h. Other servers wait this long before they "
          "take over the sessions of a failed server. A server that cannot reach Redis serves its sessions for four "
          "fifths of this time."),
      Row("drain-notice", AT(fleet.notice), Time(),
          "TIME: time that a server continues to serve after SIGTERM, while /readyz answers 503 so that routers "
          "choose other servers. Sessions move to servers that ask for them. After this time the server hands over "
          "all other sessions. Only with --share-sessions."),

      // Group: Checkpoints and lifetimes
      Row("checkpoint-every-tokens", AT(states.policy.every_tokens),
          Whole<int64_t>(0, std::numeric_limits<int32_t>::max()),
          "N: make a session durable at least every N tokens. A crash then loses at most N tokens, or one single "
          "larger call. 0: not by tokens. Needs --disk-dir or --redis."),
      Row("checkpoint-every", AT(states.policy.every), TimeOrNever(),
          "TIME: make a session durable if it has taken steps and its last durable copy is this old, for example 30s. "
          "0: not by time. Needs --disk-dir or --redis."),
      Row("session-idle-ttl", AT(session_idle_ttl), TimeOrNever(),
          "TIME: delete sessions that no call has named for this long. A session's own idle_ttl overrides it. 0: "
          "never."),

      // Group: Limits
      Row("max-draft", AT(limits.max_draft), Whole(1, 64),
          "N: most tokens of a session in one row of a Decode, 1 .. 64."),
      Row("max-batch", AT(limits.max_batch), Whole(1, 65536),
          "N: most sessions in one Decode call, and most rows merged into one batch, 1 .. 65536."),
      Row("max-message-bytes", AT(limits.max_message_bytes), Bytes(4 << 10, 1 << 30),
          "BYTES: largest request message, 4KiB .. 1GiB."),
      Row("max-stored-reply-bytes", AT(limits.max_stored_reply_bytes), Bytes(0, 64 << 20),
          "BYTES: largest reply that is stored for a retry with the same request_id, for each session and layer. At "
          "most 64MiB."),
      Row("stored-reply-bytes", AT(memory.stored_reply_bytes), Bytes(),
          "BYTES: memory for the stored outputs of all sessions on the device. Above it, the oldest outputs of the "
          "caller furthest over its share are dropped. A retry of such a step fails with REPLY_DROPPED."),
      Row("call-bytes", AT(memory.call_bytes), BytesOrAuto(),
          "BYTES: host memory for calls: their messages while they wait or run, and their replies. Callers share it. "
          "One caller may fill at most seven eighths, so that others find room. Calls above the limit are refused "
          "with BYTES_EXHAUSTED. At least --max-message-bytes. `auto`: an eighth of the host's memory."),
      Row("copy-bytes", AT(memory.copy_bytes), BytesOrAuto(1 << 20),
          "BYTES: host memory for copies of states in transfer: exports, watches, imports, checkpoints. Callers share "
          "it as they share --call-bytes. A single copy that is larger than this runs alone. `auto`: an eighth of the "
          "host's memory."),
      Row("quotas", AT(quotas), Quotas(),
          "QUOTAS: limits of each caller, and of all callers together: sessions, checkpoints, bytes, tokens a second, "
          "lifetimes. Set them in the file of --config, as a map (docs/how-to/configure.md). Changes apply while the "
          "server runs. Calls above a quota are refused with QUOTA_EXCEEDED.",
          kLive),
      Row("max-queued-steps", AT(engine.max_queued_steps), Whole(1, 1'000'000),
          "N: most steps that may wait, 1 .. 1000000. More are refused with QUEUE_FULL."),

      // Group: Connections
      Row("max-connections", AT(transport.connections.connections), Whole<int64_t>(0, 1'000'000),
          "N: most connections at once, 0 .. 1000000. Further connections are closed at once, and /readyz reports it. "
          "0: three quarters of the file descriptors that the process may have."),
      Row("max-connections-per-peer", AT(transport.connections.connections_per_peer), Whole<int64_t>(0, 1'000'000),
          "N: most connections from one address, or one IPv6 /64 network, 0 .. 1000000. Unix sockets and --proxies "
          "have no such limit. 0: half of --max-connections."),
      Row("proxies", AT(transport.connections.proxies), List(),
          "ADDRESS,..: IP addresses of proxies that connect for many clients."),
      Row("transport-bytes", AT(transport.memory_bytes), BytesOrAuto(),
          "BYTES: memory for the buffers of all connections, at least four times --max-message-bytes. When it is "
          "full, gRPC takes no new connection and closes connections without calls. Then it ends calls, whichever "
          "caller they belong to. `auto`: an eighth of the host's memory."),
      Row("streams-per-connection", AT(transport.streams_per_connection), Whole(1, 1'000'000),
          "N: most running calls on one connection, 1 .. 1000000. Further calls wait at the client."),
      Row("keepalive-time", AT(transport.keepalive_time), Time(),
          "TIME: ping a connection that has been silent for this long, with or without calls. 0: never."),
      Row("keepalive-timeout", AT(transport.keepalive_timeout), Time(absl::Milliseconds(1)),
          "TIME: close a connection that does not answer a ping within this time. Its calls are cancelled."),
      Row("min-ping-interval", AT(transport.min_ping_interval), Time(),
          "TIME: shortest time between pings of a client. A client that pings sooner three times, with no reply in "
          "between, gets GOAWAY with ENHANCE_YOUR_CALM (too_many_pings). 0: no limit."),
      Row("connection-idle", AT(transport.connection_idle), Time(),
          "TIME: close a connection without calls after this time. The client's next call opens another. 0: never."),
      Row("connection-age", AT(transport.connection_age), Time(),
          "TIME: age from which a connection takes no new calls, plus or minus a tenth. Clients then reconnect, and "
          "routers spread them over the servers again. 0: never."),
      Row("connection-age-grace", AT(transport.connection_age_grace), Time(),
          "TIME: end calls and streams on a connection of --connection-age after this time, with UNAVAILABLE."),

      // Group: Security
      Row("tls-cert", AT(security.tls_cert), Text(),
          "FILE: PEM certificate of the server, with the certificates between it and its CA. Every HOST:PORT of "
          "--listen then uses TLS. A changed file is loaded while the server runs (--credentials-reload-interval). A "
          "bad file is logged, and the old certificate stays."),
      Row("tls-key", AT(security.tls_key), Text(), "FILE: PEM key of --tls-cert, without a password."),
      Row("tls-client-ca", AT(security.tls_client_ca), Text(),
          "FILE: PEM certificates of the CAs that issue clients' certificates (mTLS). A client without a certificate "
          "of these CAs is refused."),
      Row("tls-client-optional", AT(security.tls_client_optional), Switch(),
          "Accepts clients without a certificate too, although --tls-client-ca is set."),
      Row("allow-insecure", AT(security.allow_insecure), Switch(),
          "Listens without TLS on addresses that other machines reach, for networks that are safe by themselves. "
          "Without TLS and without this flag, only loopback addresses and Unix sockets are accepted."),
      Row("credentials-reload-interval", AT(security.reload_interval), Time(absl::Seconds(1)),
          "TIME: time between checks of the files of this group for changes, 1s or more."),
      Row("tokens-file", AT(security.tokens_file), Text(),
          "FILE: JSON list of callers with the SHA-256 of their tokens (docs/how-to/secure.md). Calls then need "
          "`authorization: Bearer TOKEN`. Sessions belong to the token's subject. A changed file is loaded while the "
          "server runs. gdnctl token new makes a token and its entry."),
      Row("certificate-logins", AT(security.certificate_logins), Switch(),
          "Accepts a client's certificate (--tls-client-ca) as a login too. The subject is its only URI, else its "
          "common name if that has no ':'. The roles are those of --tokens-file, or `user` if it does not list the "
          "subject."),
      Row("trusted-proxies", AT(security.trusted_proxies), List(),
          "SUBJECT,..: proxies that end TLS, by the subjects of their own certificates. Only they may send the "
          "metadata x-gdn-verified-subject, which stands for the client's certificate."),
      Row("reflection", AT(security.reflection), Switch(),
          "Describes the API to any client that asks, such as grpcurl (gRPC server reflection)."),

      // Group: Memory shared with clients on this host
      Row("shared-memory-dir", AT(shared_memory.directory), Text(),
          "DIR: folder on an in-memory file system for the files that clients on this host put tensors in "
          "(ShareMemory). Empty: no shared memory. If the folder cannot be written, there is none either, and the log "
          "says so."),
      Row("shared-memory-bytes", AT(shared_memory.bytes), Bytes(),
          "BYTES: most shared memory of all clients together."),
      Row("shared-memory-bytes-per-principal", AT(shared_memory.bytes_per_principal), Bytes(),
          "BYTES: most shared memory of one caller: the subject of a login, a principal of --principals, or an "
          "address."),
      Row("shared-memory-regions-per-principal", AT(shared_memory.regions_per_principal), Whole(1, 4096),
          "N: most regions of shared memory of one such caller, 1 .. 4096; a ring counts as one."),
      Row("ring-spin", AT(shared_memory.ring_spin), TimeOrAuto(absl::ZeroDuration(), absl::Milliseconds(10)),
          "TIME: how long the server looks for steps in rings (ShareMemory) before it sleeps, 0 .. 10ms. A longer time "
          "answers sooner and takes more processor time while steps come. auto: 50us with a GPU, else 0, because a CPU "
          "backend computes on the same processors."),

      // Group: Shutdown, logs and traces
      Row("drain-timeout", AT(end.steps), Time(),
          "TIME: time that accepted steps, exports and imports may take to finish after SIGTERM or SIGINT, for "
          "example 30s.",
          kLive),
      Row("drain-checkpoint-timeout", AT(end.checkpoints), Time(),
          "TIME: time that a shutdown may take, after --drain-timeout, to make sessions durable. Sessions that are "
          "not durable in time come back at their last checkpoint, and the server exits with code 3.",
          kLive),
      Row("exit-on-device-failure", AT(end.tell_of_device), Switch(),
          "Exits with code 4 when no device works any more, so that a supervisor can restart the server. Before that, "
          "sessions in host memory are made durable, within --drain-timeout and --drain-checkpoint-timeout. Without "
          "the flag the server stays up and refuses steps."),
      Row("log-format", AT(logging.format), OneOf({"text", "json"}), "text, or json: one object a line."),
      Row("log-level", AT(logging.level), OneOf({"trace", "debug", "info", "warn", "error", "critical", "off"}),
          "trace, debug, info, warn, error, critical or off.", kLive),
      Row("trace-calls", AT(trace_calls), Whole(0, kMostTracedCalls),
          "N: number of calls to store, the newest ones, with the time of each stage. TraceCalls (gdnctl trace) "
          "returns them and can change the number. 0 .. 10000; 0: none.",
          kLive),
  };
  return *table;
}

#undef AT

}  // namespace gdn
