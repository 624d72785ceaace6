#include "server/flags.h"

#include <limits>
#include <set>
#include <string_view>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/string_cat.h"
#include "server/flag_types.h"
#include "server/flag_values.h"
#include "server/validation/names.h"

// scripts/generate_docs.py writes the tables of docs/reference/flags.md from these definitions, one for each "Group:".
// If a help text begins with a word in capitals and a colon, the word is the name of the flag's value.

// Group: Configuration file
ABSL_FLAG(std::string, config, "",
          "FILE: YAML file of flags and their values, one a line: `checkpoint-every: 30s`. A flag on the command line "
          "overrides the file. The server reads the file again on SIGHUP and when it changes.");
ABSL_FLAG(bool, check_config, false,
          "Checks the flags and the file of --config, and exits with code 0, or 1 if something is wrong. Prints all "
          "flags with the values that would apply, in the form of such a file.");

// Group: Models and addresses
ABSL_FLAG(
    std::vector<std::string>, model, {},
    "NAME=PATH: serve the Gated DeltaNet layers of the checkpoint at PATH as models/NAME. PATH is a Hugging Face "
    "folder or a GGUF file. Repeat the flag for more models. Without models the server offers operator sessions only.");
ABSL_FLAG(
    std::vector<std::string>, adapter, {},
    "NAME=PATH: merge the LoRA adapter in the folder PATH into the in- and out-projections of the --model NAME. The "
    "folder is as PEFT saves it (adapter_config.json, adapter_model.safetensors). Repeat the flag for more models. "
    "The adapter changes the model's fingerprint. The server ignores parts of the adapter for other layers.");
ABSL_FLAG(gdn::HeadSlice, heads, {},
          "HEADS: load and serve only these value heads of every layer, with the key heads that they read. The form is "
          "FIRST-LAST/TOTAL: 0-15/32 means the heads 0 to 15 of 32. TOTAL is the number of value heads of each model. "
          "Outputs are then partial sums in float32. Clients add up the outputs of all servers "
          "(docs/how-to/head-slices.md). Empty: all heads.");
ABSL_FLAG(bool, allow_unverified_family, false,
          "Serves models of families whose layers have not been compared with a reference implementation: gigachat3_5, "
          "kimi_k3, and the GGUF architectures that docs/reference/models.md lists as unverified.");
ABSL_FLAG(std::string, quantize, "",
          "q8_0: store the large projections of F32, F16 and BF16 checkpoints as Q8_0 in memory, in a little more than "
          "one byte a weight. Weights that the checkpoint has quantised stay as they are. The flag changes a model's "
          "fingerprint. Empty: no quantisation.");
ABSL_FLAG(
    std::vector<std::string>, listen, {"127.0.0.1:50061"},
    "ADDRESS: address for gRPC: HOST:PORT or unix:/PATH. Port 0 takes a free port. 0.0.0.0:PORT accepts other machines "
    "(use --tls-cert). A Unix socket accepts only processes of the same user. Repeat the flag for more addresses.");
ABSL_FLAG(
    std::string, http_listen, "",
    "ADDRESS: address for operators' HTTP: /metrics, /healthz, /readyz, /statusz. 127.0.0.1:9464 accepts this machine "
    "only. For a scraper on another machine, use an address of this machine or 0.0.0.0:9464. Default: no HTTP port.");
ABSL_FLAG(std::string, port_file, "",
          "FILE: file to write the port number to, once the server is ready. It is the port of the first HOST:PORT of "
          "--listen, or 0 without one. The file is written atomically.");

// Group: Device
ABSL_FLAG(std::string, backend, "auto",
          "gpu, cpu, auto or null. `auto` takes the GPU if there is a usable one, else the CPU; the log tells which, "
          "and why. `null` computes nothing and serves to measure the service itself.");
ABSL_FLAG(int32_t, gpu_device, 0, "N: number of the GPU, counted among those that HIP_VISIBLE_DEVICES leaves.");
ABSL_FLAG(std::vector<std::string>, gpu_devices, {},
          "N,N,..: numbers of several GPUs, instead of --gpu-device. Each GPU loads all models. A session is placed on "
          "a GPU with free space. If a GPU fails, its sessions fail with it, and the other GPUs continue.");
ABSL_FLAG(std::string, gpu_graphs, "auto",
          "on, off or auto: record decode steps that repeat, and replay each with one call to the GPU's runtime. "
          "`auto` measures at startup whether replay is faster; the log tells the result.");
ABSL_FLAG(int32_t, threads, 0,
          "N: worker threads of the CPU backend. 0: one for each processor that the process may use.");

// Group: Memory for session states
ABSL_FLAG(std::string, state_dtype, "float32",
          "float32 or bf16: dtype of the stored state matrices. bf16 halves their memory, and rounds to nearest even "
          "at each write. Sums, logs and convolution columns stay float32. The dtype is part of numerics_id. States "
          "from a server with the other dtype are refused, unless ImportState asks to convert them.");
ABSL_FLAG(gdn::ByteCount, device_state_bytes, gdn::ByteCount{},
          "BYTES: device memory for session states, for example 8GiB. 0 on a CPU: half of the machine's memory, "
          "committed when it is used. 0 on a GPU: three quarters of the memory that is free once the models are "
          "loaded.");
ABSL_FLAG(int32_t, state_slots, 0,
          "N: number of layer states that fit into device memory, instead of --device-state-bytes. A session has one "
          "for each Gated DeltaNet layer. The size of a layer state is that of the largest --model.");
ABSL_FLAG(gdn::OptionalByteCount, host_state_bytes, gdn::OptionalByteCount{},
          "BYTES: host memory for the states of idle sessions; page-locked if there is a GPU. 0: none. `auto`: a "
          "quarter of the host's memory with a GPU, none on a CPU.");
ABSL_FLAG(gdn::OptionalByteCount, prefix_cache_bytes, gdn::OptionalByteCount{},
          "BYTES: host memory for states of prompt prefixes (KeepPrefix). 0: no prefixes are stored. With "
          "--host-state-bytes, it is a part of that memory, and sessions may evict prefixes. `auto`: half of "
          "--host-state-bytes. If that is 0, a sixteenth of the host's memory. Memory is used only if clients store "
          "prefixes.");
ABSL_FLAG(
    absl::Duration, prefix_ttl, absl::ZeroDuration(),
    "TIME: delete prefixes that no session has started from for this long. 0: they stay until their memory is needed.");
ABSL_FLAG(std::string, disk_dir, "",
          "DIR: folder for the states of idle sessions and for checkpoints. Sessions then survive a restart. Each "
          "server needs a folder of its own.");
ABSL_FLAG(gdn::ByteCount, disk_state_bytes, gdn::ByteCount{},
          "BYTES: most bytes in --disk-dir. 0: no limit but the disk's. Without --redis, checkpoints of a caller over "
          "its share must leave one eighth free (BYTES_EXHAUSTED).");
ABSL_FLAG(int32_t, disk_high_watermark, 95,
          "PERCENT: write no new states to the disk while more of the file system of --disk-dir is in use, whoever "
          "uses it. States that are on the disk are still replaced. 0 or 100: no watermark.");
ABSL_FLAG(int32_t, disk_low_watermark, 90,
          "PERCENT: write new states again once use has fallen to this value, which is below --disk-high-watermark.");
ABSL_FLAG(gdn::ByteCount, scrub_bytes_per_second, gdn::ByteCount{int64_t{8} << 20},
          "BYTES: bytes of --disk-dir to read each second, to verify the checksums of stored states. The server reads "
          "only while no call or step is running. 0: checksums are verified only when a state is loaded.");
ABSL_FLAG(
    gdn::OptionalByteCount, session_bytes, gdn::OptionalByteCount{},
    "BYTES: most bytes of all sessions' states, in whichever tier, and of named checkpoints. Callers share them as "
    "they share --call-bytes. Above the limit, sessions are refused with BYTES_EXHAUSTED. `auto`: the device and host "
    "memory for states together, or --disk-state-bytes if that is more. `auto` sets no limit with --redis, or with "
    "--disk-dir without --disk-state-bytes. It also sets none if the device is the only tier and --principals lists "
    "nobody.");
ABSL_FLAG(std::string, redis, "",
          "ADDRESS: Redis server for states that find no space on the disk, or for all states without a disk. Forms: "
          "HOST:PORT, unix:/PATH, redis://[USER@]HOST:PORT/DB, or `sentinel://[USER@]HOST:PORT,HOST:PORT,../NAME/DB` "
          "for the master that Sentinels name. If states must survive a crash of Redis, run Redis with `appendonly "
          "yes` and `appendfsync always`.");
ABSL_FLAG(std::string, redis_password_file, "",
          "FILE: file with the password of --redis. It is read again for each connection, so you can change it while "
          "the server runs.");
ABSL_FLAG(std::string, redis_prefix, "gdn:",
          "TEXT: prefix of all keys in --redis. Without --share-sessions, each server needs its own prefix, because a "
          "server that starts with the prefix of another takes over its sessions.");

ABSL_FLAG(int32_t, redis_wait_replicas, 0,
          "N: number of replicas of --redis that must have a checkpoint before it counts as made (WAIT). A failover to "
          "one of them then loses nothing. 0: none.");
ABSL_FLAG(absl::Duration, redis_wait_timeout, absl::Seconds(1),
          "TIME: time for the replicas of --redis-wait-replicas to get a checkpoint, less than 5s. If they take "
          "longer, the checkpoint is tried again.");
ABSL_FLAG(std::string, principals, "",
          "FILE: JSON list of callers with their own shares of memory and time, by weight: `{\"principals\": "
          "[{\"name\": NAME, \"sha256\": [HASH, ..], \"weight\": 1}]}`. HASH is the SHA-256 of the whole authorization "
          "value or TLS identity. All other callers together have one share of weight 1, split by the address that "
          "they call from. Sessions belong to the name, so you can change tokens. List a principal before it has "
          "sessions: sessions that it created earlier belong to its token.");
ABSL_FLAG(std::string, principal_key_file, "",
          "FILE: secret of 16 bytes or more. The server stores callers under names that it derives from the secret "
          "(HMAC-SHA-256). Default: the server makes a secret. It stores the secret in --disk-dir (principal-key, "
          "readable by its owner only), else in --redis, else in memory only. Servers that take over each other's "
          "sessions need the same secret.");

// Group: Several servers
ABSL_FLAG(bool, share_sessions, false,
          "Shares the sessions of one --redis and --redis-prefix with other servers that have this flag. A session is "
          "on one server at a time, and moves to the server that is called for it (docs/how-to/fleet.md). Checkpoints "
          "and idle sessions are stored in Redis, without --disk-dir.");
ABSL_FLAG(std::string, node_name, "",
          "NAME: the server's name in messages to other servers. Default: the machine's name and the process id.");
ABSL_FLAG(
    absl::Duration, node_lease, absl::Seconds(15),
    "TIME: length of the server's lease on its sessions, 2s .. 1h. Other servers wait this long before they take "
    "over the sessions of a failed server. A server that cannot reach Redis serves its sessions for four fifths of "
    "this time.");
ABSL_FLAG(absl::Duration, drain_notice, absl::Seconds(3),
          "TIME: time that a server continues to serve after SIGTERM, while /readyz answers 503 so that routers choose "
          "other servers. Sessions move to servers that ask for them. After this time the server hands over all other "
          "sessions. Only with --share-sessions.");

// Group: Checkpoints and lifetimes
ABSL_FLAG(int32_t, checkpoint_every_tokens, 0,
          "N: make a session durable at least every N tokens. A crash then loses at most N tokens, or one single "
          "larger call. 0: not by tokens. Needs --disk-dir or --redis.");
ABSL_FLAG(absl::Duration, checkpoint_every, absl::ZeroDuration(),
          "TIME: make a session durable if it has taken steps and its last durable copy is this old, for example 30s. "
          "0: not by time. Needs --disk-dir or --redis.");
ABSL_FLAG(
    absl::Duration, session_idle_ttl, absl::ZeroDuration(),
    "TIME: delete sessions that no call has named for this long. A session's own idle_ttl overrides it. 0: never.");

// Group: Limits
ABSL_FLAG(int32_t, max_draft, 8, "N: most tokens of a session in one row of a Decode, 1 .. 64.");
ABSL_FLAG(int32_t, max_batch, 512,
          "N: most sessions in one Decode call, and most rows merged into one batch, 1 .. 65536.");
ABSL_FLAG(gdn::ByteCount, max_message_bytes, gdn::ByteCount{int64_t{64} << 20},
          "BYTES: largest request message, 4KiB .. 1GiB.");
ABSL_FLAG(gdn::ByteCount, max_stored_reply_bytes, gdn::ByteCount{int64_t{1} << 20},
          "BYTES: largest reply that is stored for a retry with the same request_id, for each session and layer. At "
          "most 64MiB.");
ABSL_FLAG(gdn::ByteCount, stored_reply_bytes, gdn::ByteCount{int64_t{1} << 30},
          "BYTES: memory for the stored outputs of all sessions on the device. Above it, the oldest outputs of the "
          "caller furthest over its share are dropped. A retry of such a step fails with REPLY_DROPPED.");
ABSL_FLAG(gdn::OptionalByteCount, call_bytes, gdn::OptionalByteCount{},
          "BYTES: host memory for calls: their messages while they wait or run, and their replies. Callers share it. "
          "One caller may fill at most seven eighths, so that others find room. Calls above the limit are refused with "
          "BYTES_EXHAUSTED. At least --max-message-bytes. `auto`: an eighth of the host's memory.");
ABSL_FLAG(gdn::OptionalByteCount, copy_bytes, gdn::OptionalByteCount{},
          "BYTES: host memory for copies of states in transfer: exports, watches, imports, checkpoints. Callers share "
          "it as they share --call-bytes. A single copy that is larger than this runs alone. `auto`: an eighth of the "
          "host's memory.");
ABSL_FLAG(gdn::QuotaSettings, quotas, gdn::QuotaSettings{},
          "QUOTAS: limits of each caller, and of all callers together: sessions, checkpoints, bytes, tokens a second, "
          "lifetimes. Set them in the file of --config, as a map (docs/how-to/configure.md). Changes apply while the "
          "server runs. Calls above a quota are refused with QUOTA_EXCEEDED.");
ABSL_FLAG(int32_t, max_queued_steps, 4096,
          "N: most steps that may wait, 1 .. 1000000. More are refused with QUEUE_FULL.");

// Group: Connections
ABSL_FLAG(int32_t, max_connections, 0,
          "N: most connections at once, 0 .. 1000000. Further connections are closed at once, and /readyz reports it. "
          "0: three quarters of the file descriptors that the process may have.");
ABSL_FLAG(int32_t, max_connections_per_peer, 0,
          "N: most connections from one address, or one IPv6 /64 network, 0 .. 1000000. Unix sockets and --proxies "
          "have no such limit. 0: half of --max-connections.");
ABSL_FLAG(std::vector<std::string>, proxies, {}, "ADDRESS,..: IP addresses of proxies that connect for many clients.");
ABSL_FLAG(gdn::OptionalByteCount, transport_bytes, gdn::OptionalByteCount{},
          "BYTES: memory for the buffers of all connections, at least four times --max-message-bytes. When it is full, "
          "gRPC takes no new connection and closes connections without calls. Then it ends calls, whichever caller "
          "they belong to. `auto`: an eighth of the host's memory.");
ABSL_FLAG(int32_t, streams_per_connection, 1024,
          "N: most running calls on one connection, 1 .. 1000000. Further calls wait at the client.");
ABSL_FLAG(absl::Duration, keepalive_time, absl::Seconds(60),
          "TIME: ping a connection that has been silent for this long, with or without calls. 0: never.");
ABSL_FLAG(absl::Duration, keepalive_timeout, absl::Seconds(20),
          "TIME: close a connection that does not answer a ping within this time. Its calls are cancelled.");
ABSL_FLAG(absl::Duration, min_ping_interval, absl::Seconds(5),
          "TIME: shortest time between pings of a client. A client that pings sooner three times, with no reply in "
          "between, gets GOAWAY with ENHANCE_YOUR_CALM (too_many_pings). 0: no limit.");
ABSL_FLAG(absl::Duration, connection_idle, absl::Seconds(1800),
          "TIME: close a connection without calls after this time. The client's next call opens another. 0: never.");
ABSL_FLAG(absl::Duration, connection_age, absl::ZeroDuration(),
          "TIME: age from which a connection takes no new calls, plus or minus a tenth. Clients then reconnect, and "
          "routers spread them over the servers again. 0: never.");
ABSL_FLAG(absl::Duration, connection_age_grace, absl::Seconds(300),
          "TIME: end calls and streams on a connection of --connection-age after this time, with UNAVAILABLE.");

// Group: Security
ABSL_FLAG(std::string, tls_cert, "",
          "FILE: PEM certificate of the server, with the certificates between it and its CA. Every HOST:PORT of "
          "--listen then uses TLS. A changed file is loaded while the server runs (--credentials-reload-interval). A "
          "bad file is logged, and the old certificate stays.");
ABSL_FLAG(std::string, tls_key, "", "FILE: PEM key of --tls-cert, without a password.");
ABSL_FLAG(std::string, tls_client_ca, "",
          "FILE: PEM certificates of the CAs that issue clients' certificates (mTLS). A client without a "
          "certificate of these CAs is refused.");
ABSL_FLAG(bool, tls_client_optional, false,
          "Accepts clients without a certificate too, although --tls-client-ca is set.");
ABSL_FLAG(bool, allow_insecure, false,
          "Listens without TLS on addresses that other machines reach, for networks that are safe by themselves. "
          "Without TLS and without this flag, only loopback addresses and Unix sockets are accepted.");
ABSL_FLAG(absl::Duration, credentials_reload_interval, absl::Seconds(10),
          "TIME: time between checks of the files of this group for changes, 1s or more.");
ABSL_FLAG(std::string, tokens_file, "",
          "FILE: JSON list of callers with the SHA-256 of their tokens (docs/how-to/secure.md). Calls then need "
          "`authorization: Bearer TOKEN`. Sessions belong to the token's subject. A changed file is loaded while the "
          "server runs. gdnctl token new makes a token and its entry.");
ABSL_FLAG(
    bool, certificate_logins, false,
    "Accepts a client's certificate (--tls-client-ca) as a login too. The subject is its only URI, else its common "
    "name if that has no ':'. The roles are those of --tokens-file, or `user` if it does not list the subject.");
ABSL_FLAG(std::vector<std::string>, trusted_proxies, {},
          "SUBJECT,..: proxies that end TLS, by the subjects of their own certificates. Only they may send the "
          "metadata x-gdn-verified-subject, which stands for the client's certificate.");
ABSL_FLAG(bool, reflection, true,
          "Describes the API to any client that asks, such as grpcurl (gRPC server reflection).");

// Group: Memory shared with clients on this host
ABSL_FLAG(
    std::string, shared_memory_dir, "/dev/shm",
    "DIR: folder on an in-memory file system for the files that clients on this host put tensors in (ShareMemory). "
    "Empty: no shared memory. If the folder cannot be written, there is none either, and the log says so.");
ABSL_FLAG(gdn::ByteCount, shared_memory_bytes, gdn::ByteCount{int64_t{1} << 30},
          "BYTES: most shared memory of all clients together.");
ABSL_FLAG(
    gdn::ByteCount, shared_memory_bytes_per_principal, gdn::ByteCount{int64_t{256} << 20},
    "BYTES: most shared memory of one caller: the subject of a login, a principal of --principals, or an address.");
ABSL_FLAG(int32_t, shared_memory_regions_per_principal, 256,
          "N: most regions of shared memory of one such caller, 1 .. 4096.");

// Group: Shutdown, logs and traces
ABSL_FLAG(
    absl::Duration, drain_timeout, absl::Seconds(30),
    "TIME: time that accepted steps, exports and imports may take to finish after SIGTERM or SIGINT, for example 30s.");
ABSL_FLAG(absl::Duration, drain_checkpoint_timeout, absl::Seconds(300),
          "TIME: time that a shutdown may take, after --drain-timeout, to make sessions durable. Sessions that are not "
          "durable in time come back at their last checkpoint, and the server exits with code 3.");
ABSL_FLAG(bool, exit_on_device_failure, false,
          "Exits with code 4 when no device works any more, so that a supervisor can restart the server. "
          "Before that, sessions in host memory are made durable, within --drain-timeout and "
          "--drain-checkpoint-timeout. Without the flag the server stays up and refuses steps.");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object a line.");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warn, error, critical or off.");

ABSL_FLAG(int32_t, trace_calls, 0,
          "N: number of calls to store, the newest ones, with the time of each stage. TraceCalls (gdnctl trace) "
          "returns them and can change the number. 0 .. 10000; 0: none.");

namespace gdn {

ServerOptions OptionsOfFlags(std::vector<std::string>& faults) {
  ServerOptions options;
  std::set<std::string> names;
  for (const std::string& model : absl::GetFlag(FLAGS_model)) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(model, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.second.empty() || !CheckSessionId(parts.first).ok()) {
      faults.push_back(StrCat("--model is '", model, "', expected NAME=PATH with a NAME of [A-Za-z0-9._~-]"));
      continue;
    }
    if (!names.insert(parts.first).second) {
      faults.push_back(StrCat("--model names '", parts.first, "' twice; give each a name of its own"));
    }
    options.models.push_back(parts);
  }
  options.adapters = AdaptersOf(absl::GetFlag(FLAGS_adapter), options.models, faults);
  options.load.allow_unverified_family = absl::GetFlag(FLAGS_allow_unverified_family);
  options.load.heads = absl::GetFlag(FLAGS_heads);
  options.load.quantize_q8_0 = QuantizesToQ8(absl::GetFlag(FLAGS_quantize), faults);
  options.listen = absl::GetFlag(FLAGS_listen);
  options.http_listen = absl::GetFlag(FLAGS_http_listen);
  options.port_file = absl::GetFlag(FLAGS_port_file);
  options.backend = absl::GetFlag(FLAGS_backend);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.gpu_devices = GpuDevicesOf(absl::GetFlag(FLAGS_gpu_device), absl::GetFlag(FLAGS_gpu_devices), faults);
  options.gpu_graphs = absl::GetFlag(FLAGS_gpu_graphs);
  options.state_dtype = StateDtypeOf(absl::GetFlag(FLAGS_state_dtype), faults);
  options.state_slots = absl::GetFlag(FLAGS_state_slots);
  options.device_state_bytes = absl::GetFlag(FLAGS_device_state_bytes).bytes;
  options.host_state_bytes = absl::GetFlag(FLAGS_host_state_bytes).bytes;
  options.prefix_cache_bytes = absl::GetFlag(FLAGS_prefix_cache_bytes).bytes;
  options.prefix_ttl = absl::GetFlag(FLAGS_prefix_ttl);
  options.disk_dir = absl::GetFlag(FLAGS_disk_dir);
  options.disk_state_bytes = absl::GetFlag(FLAGS_disk_state_bytes).bytes;
  options.disk_watermarks.high_percent = absl::GetFlag(FLAGS_disk_high_watermark);
  options.disk_watermarks.low_percent = absl::GetFlag(FLAGS_disk_low_watermark);
  options.scrub.bytes_per_second = absl::GetFlag(FLAGS_scrub_bytes_per_second).bytes;
  options.redis = absl::GetFlag(FLAGS_redis);
  options.redis_password_file = absl::GetFlag(FLAGS_redis_password_file);
  options.redis_prefix = absl::GetFlag(FLAGS_redis_prefix);
  options.redis_wait_replicas = absl::GetFlag(FLAGS_redis_wait_replicas);
  options.redis_wait_timeout = absl::GetFlag(FLAGS_redis_wait_timeout);
  options.share_sessions = absl::GetFlag(FLAGS_share_sessions);
  options.node_name = absl::GetFlag(FLAGS_node_name);
  options.node_lease = absl::GetFlag(FLAGS_node_lease);
  options.drain_notice = absl::GetFlag(FLAGS_drain_notice);
  options.principals_file = absl::GetFlag(FLAGS_principals);
  options.principal_key_file = absl::GetFlag(FLAGS_principal_key_file);
  options.checkpoint_every_tokens = absl::GetFlag(FLAGS_checkpoint_every_tokens);
  options.checkpoint_every = absl::GetFlag(FLAGS_checkpoint_every);
  options.session_idle_ttl = absl::GetFlag(FLAGS_session_idle_ttl);
  options.stored_reply_bytes = absl::GetFlag(FLAGS_stored_reply_bytes).bytes;
  options.limits.max_draft = absl::GetFlag(FLAGS_max_draft);
  options.limits.max_batch = absl::GetFlag(FLAGS_max_batch);
  options.limits.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes).bytes;
  options.limits.max_stored_reply_bytes = absl::GetFlag(FLAGS_max_stored_reply_bytes).bytes;
  options.call_bytes = absl::GetFlag(FLAGS_call_bytes).bytes;
  options.copy_bytes = absl::GetFlag(FLAGS_copy_bytes).bytes;
  options.session_bytes = absl::GetFlag(FLAGS_session_bytes).bytes;
  options.quotas = absl::GetFlag(FLAGS_quotas);
  options.max_queued_steps = absl::GetFlag(FLAGS_max_queued_steps);
  options.shared_memory.directory = absl::GetFlag(FLAGS_shared_memory_dir);
  options.shared_memory.bytes = absl::GetFlag(FLAGS_shared_memory_bytes).bytes;
  options.shared_memory.bytes_per_principal = absl::GetFlag(FLAGS_shared_memory_bytes_per_principal).bytes;
  options.shared_memory.regions_per_principal = absl::GetFlag(FLAGS_shared_memory_regions_per_principal);
  options.transport = {.connections = {.connections = absl::GetFlag(FLAGS_max_connections),
                                       .connections_per_peer = absl::GetFlag(FLAGS_max_connections_per_peer),
                                       .proxies = absl::GetFlag(FLAGS_proxies)},
                       .memory_bytes = absl::GetFlag(FLAGS_transport_bytes).bytes.value_or(0),
                       .streams_per_connection = absl::GetFlag(FLAGS_streams_per_connection),
                       .keepalive_time = absl::GetFlag(FLAGS_keepalive_time),
                       .keepalive_timeout = absl::GetFlag(FLAGS_keepalive_timeout),
                       .min_ping_interval = absl::GetFlag(FLAGS_min_ping_interval),
                       .connection_idle = absl::GetFlag(FLAGS_connection_idle),
                       .connection_age = absl::GetFlag(FLAGS_connection_age),
                       .connection_age_grace = absl::GetFlag(FLAGS_connection_age_grace)};
  options.security = {.tls_cert = absl::GetFlag(FLAGS_tls_cert),
                      .tls_key = absl::GetFlag(FLAGS_tls_key),
                      .tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca),
                      .tls_client_required = !absl::GetFlag(FLAGS_tls_client_optional),
                      .allow_insecure = absl::GetFlag(FLAGS_allow_insecure),
                      .reflection = absl::GetFlag(FLAGS_reflection),
                      .tokens_file = absl::GetFlag(FLAGS_tokens_file),
                      .certificate_logins = absl::GetFlag(FLAGS_certificate_logins),
                      .trusted_proxies = absl::GetFlag(FLAGS_trusted_proxies),
                      .reload_interval = absl::GetFlag(FLAGS_credentials_reload_interval)};
  options.trace_calls = absl::GetFlag(FLAGS_trace_calls);
  options.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  options.drain_checkpoint_timeout = absl::GetFlag(FLAGS_drain_checkpoint_timeout);
  options.exit_on_device_failure = absl::GetFlag(FLAGS_exit_on_device_failure);
  options.logging = {.format = absl::GetFlag(FLAGS_log_format), .level = absl::GetFlag(FLAGS_log_level)};
  for (std::string& fault : OptionFaults(options)) faults.push_back(std::move(fault));
  return options;
}

}  // namespace gdn
