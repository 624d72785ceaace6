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
// Where a help text begins with words in capitals and a colon, they are the name of the flag's value.

// Group: The file of flags
ABSL_FLAG(
    std::string, config, "",
    "FILE: YAML with flags and their values, one a line: `checkpoint-every: 30s`. A flag on the command line wins "
    "over the file. SIGHUP, or its change, reads the file anew.");
ABSL_FLAG(bool, check_config, false,
          "Checks the flags and the file of --config, prints all flags as they would hold, in the form of such a file, "
          "and exits: with code 0, or 1 where something is wrong.");

// Group: What is served, and where
ABSL_FLAG(
    std::vector<std::string>, model, {},
    "NAME=PATH: serve the Gated DeltaNet layers of the checkpoint at PATH, a Hugging Face folder or a file in GGUF, as "
    "models/NAME. Repeat it for more models. Without one there are operator sessions only.");
ABSL_FLAG(
    std::vector<std::string>, adapter, {},
    "NAME=PATH: merge the LoRA adapter in the folder PATH, as PEFT saves it (adapter_config.json and "
    "adapter_model.safetensors), into the in- and out-projections of the --model NAME. Repeat it for more models. "
    "Part of a model's fingerprint. What the adapter has for other layers is passed over.");
ABSL_FLAG(
    gdn::HeadSlice, heads, {},
    "HEADS: load and serve only these value heads of every layer, with the key heads that they read: FIRST-LAST/TOTAL, "
    "both included, of the TOTAL that each model has, as 0-15/32. Outputs are then partial sums in float32, to be "
    "added "
    "up over the servers of the other heads (docs/how-to/head-slices.md). Empty: all heads.");
ABSL_FLAG(bool, allow_unverified_family, false,
          "Serve models of families whose layers have not been compared with a reference implementation's, of which "
          "there is one: gigachat3_5.");
ABSL_FLAG(std::string, quantize, "",
          "q8_0: keep the large projections of checkpoints in F32, F16 or BF16 as Q8_0, in a little more than a byte a "
          "weight. What a checkpoint has quantised stays as it is. Part of a model's fingerprint. Empty: nothing is.");
ABSL_FLAG(std::vector<std::string>, listen, {"127.0.0.1:50061"},
          "ADDRESS: where to listen: HOST:PORT, where port 0 takes a free one and 0.0.0.0:PORT serves other machines "
          "(with --tls-cert), or "
          "unix:/PATH, a socket that only processes of the same user may use. Repeat it for more.");
ABSL_FLAG(
    std::string, http_listen, "",
    "ADDRESS: where to answer HTTP for operators: /metrics, /healthz, /readyz, /statusz. 127.0.0.1:9464 serves "
    "this machine only; another machine's scraper needs an address of this one, or 0.0.0.0:9464. None by default.");
ABSL_FLAG(std::string, port_file, "",
          "FILE: write the bound port number (of the first HOST:PORT; 0 without one) to this file, in one piece, once "
          "the server is ready.");

// Group: Where layers are computed
ABSL_FLAG(std::string, backend, "auto",
          "gpu, cpu, or auto: the GPU where a usable one is found, else the CPU (the log says which, and why). null "
          "computes nothing; it is for measuring the service itself.");
ABSL_FLAG(int32_t, gpu_device, 0, "N: which GPU, counted among those that HIP_VISIBLE_DEVICES leaves.");
ABSL_FLAG(
    std::vector<std::string>, gpu_devices, {},
    "N,N,..: several GPUs, instead of --gpu-device: an engine and all models on each, and sessions where there is "
    "room. One that fails takes the sessions on it with it, and the others go on.");
ABSL_FLAG(std::string, gpu_graphs, "auto",
          "on, off, or auto: whether decode steps that come again are recorded and replayed with one call to the GPU's "
          "runtime. auto measures at start whether that is quicker; the log says what it found.");
ABSL_FLAG(int32_t, threads, 0,
          "N: worker threads of the CPU backend; 0: one for each processor that the process may use.");

// Group: Memory for session states
ABSL_FLAG(
    std::string, state_dtype, "float32",
    "float32, or bf16: the matrices of the states are kept as bfloat16, which halves them, and rounded to nearest "
    "even whenever they are written; sums, logs and convolution columns stay float32. Part of "
    "numerics_id. States of a server of the other kind are refused, or converted where ImportState is asked to.");
ABSL_FLAG(gdn::ByteCount, device_state_bytes, gdn::ByteCount{},
          "BYTES: device memory for session states, for example 8GiB; 0: half of a CPU's memory (committed as it is "
          "used), or three quarters of what is free on a GPU once the models are loaded.");
ABSL_FLAG(int32_t, state_slots, 0,
          "N: instead of --device-state-bytes: room for this many layer states of the largest --model. A session needs "
          "one for each Gated DeltaNet layer.");
ABSL_FLAG(gdn::OptionalByteCount, host_state_bytes, gdn::OptionalByteCount{},
          "BYTES: host memory for the states of idle sessions, page-locked beside a GPU; 0: none. auto: a quarter of "
          "the host's memory beside a GPU, none on a CPU.");
ABSL_FLAG(gdn::OptionalByteCount, prefix_cache_bytes, gdn::OptionalByteCount{},
          "BYTES: host memory for the states of prompts' prefixes (KeepPrefix); 0: none are kept. Beside "
          "--host-state-bytes it is a part of that, which sessions take first. auto: half of --host-state-bytes, or a "
          "sixteenth of the host's memory where that is 0; it is taken only where clients keep prefixes.");
ABSL_FLAG(absl::Duration, prefix_ttl, absl::ZeroDuration(),
          "TIME: prefixes that no session has begun with for this long go; 0: they stay until their room is needed.");
ABSL_FLAG(std::string, disk_dir, "",
          "DIR: folder for the states of idle sessions and for checkpoints: sessions then survive a restart. One "
          "server a folder.");
ABSL_FLAG(gdn::ByteCount, disk_state_bytes, gdn::ByteCount{},
          "BYTES: most that --disk-dir may hold; 0: no limit but the disk's. Where there is no --redis, checkpoints of "
          "a caller over its share leave an eighth of it free (BYTES_EXHAUSTED).");
ABSL_FLAG(int32_t, disk_high_watermark, 95,
          "PERCENT: while more of --disk-dir's file system is in use, by whomever, no new states are put there; those "
          "that are there are replaced as before. 0 or 100: it may fill.");
ABSL_FLAG(int32_t, disk_low_watermark, 90, "PERCENT: nor until it has fallen to this, below --disk-high-watermark.");
ABSL_FLAG(
    gdn::ByteCount, scrub_bytes_per_second, gdn::ByteCount{int64_t{8} << 20},
    "BYTES: how much of --disk-dir is read in a second while no call or step is about, to verify the checksums of "
    "the states that rest there; 0: none are, before they are needed.");
ABSL_FLAG(gdn::OptionalByteCount, session_bytes, gdn::OptionalByteCount{},
          "BYTES: states of all sessions, wherever they are, and named checkpoints. Callers share it as they do "
          "--call-bytes; sessions that are over are refused with BYTES_EXHAUSTED. auto: the device and host memory for "
          "states, or --disk-state-bytes where that is more; no limit with --redis or a disk without one, nor, where "
          "nobody is listed (--principals), without a tier below the device.");
ABSL_FLAG(
    std::string, redis, "",
    "ADDRESS: Redis server for states that find no room on the disk, or instead of a disk: HOST:PORT, unix:/PATH, "
    "redis://[USER@]HOST:PORT/DB, or sentinel://[USER@]HOST:PORT,HOST:PORT,../NAME/DB for the master that Sentinels "
    "name. Where states must survive Redis itself, run it with appendonly yes and "
    "appendfsync always.");
ABSL_FLAG(std::string, redis_password_file, "",
          "FILE: the password of --redis, read anew for each connection, so that one that is changed is taken up.");
ABSL_FLAG(std::string, redis_prefix, "gdn:",
          "TEXT: what all keys in --redis begin with. One server a prefix: one that is started with another's takes "
          "over its sessions.");

ABSL_FLAG(
    int32_t, redis_wait_replicas, 0,
    "N: how many replicas of --redis must have a checkpoint before it counts as made (WAIT): a failover to one of "
    "them then loses nothing. 0: none.");
ABSL_FLAG(absl::Duration, redis_wait_timeout, absl::Seconds(1),
          "TIME: how long they may take, less than 5s; a checkpoint that they have not got by then is tried again.");
ABSL_FLAG(
    std::string, principals, "",
    "FILE: JSON list of callers with shares of their own in memory and time, by weight: {\"principals\": [{\"name\": "
    "NAME, \"sha256\": [SHA-256 of the whole authorization value or TLS identity, ..], \"weight\": 1}]}. All that are "
    "not "
    "in it have one share of weight 1, split by the address that they call from. Sessions belong to the name, so "
    "tokens "
    "can be changed. List a principal before it has sessions: those it made before belong to its token.");
ABSL_FLAG(
    std::string, principal_key_file, "",
    "FILE: the secret that callers' names inside the server are made with (HMAC-SHA-256), of 16 bytes or more. "
    "Without it one is made and kept in --disk-dir (principal-key, for its owner alone), else in --redis, else for "
    "as long as the process lives. Servers that take over each other's sessions need the same.");

// Group: Several servers
ABSL_FLAG(
    bool, share_sessions, false,
    "Shares the sessions of one --redis and --redis-prefix with other servers that do: each is one server's at a "
    "time, and goes to the one that is called for it (docs/how-to/fleet.md). Checkpoints and idle sessions are kept in "
    "Redis, without --disk-dir.");
ABSL_FLAG(
    std::string, node_name, "",
    "NAME: what this server is called in messages to others. The machine's name and the process's number by default.");
ABSL_FLAG(absl::Duration, node_lease, absl::Seconds(15),
          "TIME: how long a server that has gone keeps its sessions from the others, and one that cannot reach Redis "
          "serves them; 2s .. 1h.");
ABSL_FLAG(absl::Duration, drain_notice, absl::Seconds(3),
          "TIME: how long a server that drains serves on while /readyz says so, that routers may learn it; sessions go "
          "to the servers that ask for them meanwhile, then all that are left. Only with --share-sessions.");

// Group: Checkpoints and lifetimes
ABSL_FLAG(int32_t, checkpoint_every_tokens, 0,
          "N: makes a session durable at least every so many tokens: a crash never loses more (but a single larger "
          "call). 0: not by tokens. Needs --disk-dir or --redis.");
ABSL_FLAG(absl::Duration, checkpoint_every, absl::ZeroDuration(),
          "TIME: makes sessions that have moved durable after this time, for example 30s; 0: not by time. Needs "
          "--disk-dir or --redis.");
ABSL_FLAG(absl::Duration, session_idle_ttl, absl::ZeroDuration(),
          "TIME: deletes sessions that no call has named for this long, where they do not say otherwise; 0: never.");

// Group: Limits
ABSL_FLAG(int32_t, max_draft, 8, "N: tokens that a session may bring to one row of a Decode, 1 .. 64.");
ABSL_FLAG(int32_t, max_batch, 512, "N: sessions in one Decode call, and rows merged into one batch, 1 .. 65536.");
ABSL_FLAG(gdn::ByteCount, max_message_bytes, gdn::ByteCount{int64_t{64} << 20},
          "BYTES: largest request message, 4KiB .. 1GiB.");
ABSL_FLAG(gdn::ByteCount, max_stored_reply_bytes, gdn::ByteCount{int64_t{1} << 20},
          "BYTES: largest reply that is kept for a retry with the same request_id, for each session and layer; at most "
          "64MiB.");
ABSL_FLAG(gdn::ByteCount, stored_reply_bytes, gdn::ByteCount{int64_t{1} << 30},
          "BYTES: memory for the outputs of the kept replies of all sessions on the device. Above it the oldest of the "
          "caller that is furthest over its share go: a retry of such a step is answered with REPLY_DROPPED.");
ABSL_FLAG(
    gdn::OptionalByteCount, call_bytes, gdn::OptionalByteCount{},
    "BYTES: host memory for calls: their messages while they wait or run, and their replies. Callers share it: one "
    "alone may fill seven eighths, so that another finds room; what is over is refused with BYTES_EXHAUSTED. At "
    "least --max-message-bytes. auto: an eighth of the host's memory.");
ABSL_FLAG(gdn::OptionalByteCount, copy_bytes, gdn::OptionalByteCount{},
          "BYTES: host memory for copies of states on their way: exports, watches, imports, checkpoints. Shared as "
          "--call-bytes is; a "
          "single copy that is larger goes alone. auto: an eighth of the host's memory.");
ABSL_FLAG(gdn::QuotaSettings, quotas, gdn::QuotaSettings{},
          "QUOTAS: what each caller, and all together, may use: sessions, checkpoints, bytes, tokens a second, "
          "lifetimes. Best "
          "in the file of --config, where it is a map (docs/how-to/configure.md); it is taken up while the server "
          "runs. What is "
          "over is "
          "refused with QUOTA_EXCEEDED.");
ABSL_FLAG(int32_t, max_queued_steps, 4096, "N: steps that may wait, 1 .. 1000000; more are refused with QUEUE_FULL.");

// Group: Connections
ABSL_FLAG(
    int32_t, max_connections, 0,
    "N: connections at once, 0 .. 1000000; further ones are closed at once, and /readyz says so. 0: three quarters of "
    "the descriptors that the process may have.");
ABSL_FLAG(
    int32_t, max_connections_per_peer, 0,
    "N: of these from one address, or one /64 network of IPv6, 0 .. 1000000. Unix sockets and --proxies have no such "
    "limit. 0: half of them.");
ABSL_FLAG(std::vector<std::string>, proxies, {},
          "ADDRESS,..: IP addresses of proxies, through which many clients come.");
ABSL_FLAG(gdn::OptionalByteCount, transport_bytes, gdn::OptionalByteCount{},
          "BYTES: memory for the buffers of all connections, at least four times --max-message-bytes. Where it is used "
          "up, gRPC takes no new connection, closes those without calls, and then ends calls, whose it does not ask. "
          "auto: an eighth of the host's memory.");
ABSL_FLAG(int32_t, streams_per_connection, 1024,
          "N: calls under way on one connection, 1 .. 1000000; those above wait at the client.");
ABSL_FLAG(absl::Duration, keepalive_time, absl::Seconds(60),
          "TIME: a connection that was silent for so long is asked for an answer, calls or not; 0: never.");
ABSL_FLAG(absl::Duration, keepalive_timeout, absl::Seconds(20),
          "TIME: without an answer within this time the connection is closed, and its calls are cancelled.");
ABSL_FLAG(absl::Duration, min_ping_interval, absl::Seconds(5),
          "TIME: a client that three times pings sooner than so long after its last ping, with no reply between, is "
          "disconnected with ENHANCE_YOUR_CALM; 0: it may.");
ABSL_FLAG(
    absl::Duration, connection_idle, absl::Seconds(1800),
    "TIME: a connection without a call is closed after this time; the client's next call makes another. 0: never.");
ABSL_FLAG(
    absl::Duration, connection_age, absl::ZeroDuration(),
    "TIME: a connection takes no new call from this age on, give or take a tenth, so that clients spread anew over "
    "servers; 0: never.");
ABSL_FLAG(absl::Duration, connection_age_grace, absl::Seconds(300),
          "TIME: calls on a connection of that age, streams too, end after this time with UNAVAILABLE.");

// Group: Security
ABSL_FLAG(std::string, tls_cert, "",
          "FILE: PEM certificate of the server, and those between it and its CA: every HOST:PORT of --listen then "
          "speaks TLS. A file that changes is taken up while the server runs (--credentials-reload-interval); one that "
          "is not good is logged, and the old one stays.");
ABSL_FLAG(std::string, tls_key, "", "FILE: PEM key of --tls-cert, without a password.");
ABSL_FLAG(std::string, tls_client_ca, "",
          "FILE: PEM certificates of who may have issued clients' certificates (mTLS). A client without one of theirs "
          "is not let in.");
ABSL_FLAG(bool, tls_client_optional, false,
          "Lets clients without a certificate in as well, though --tls-client-ca is given.");
ABSL_FLAG(bool, allow_insecure, false,
          "Listens without TLS where other machines reach it too, as inside a network that is safe by itself. Without "
          "TLS and without this flag only loopback addresses and Unix sockets are taken.");
ABSL_FLAG(absl::Duration, credentials_reload_interval, absl::Seconds(10),
          "TIME: how often the files of this group are looked at, 1s or more.");
ABSL_FLAG(
    std::string, tokens_file, "",
    "FILE: JSON of who may call, and the SHA-256 of their tokens (docs/how-to/secure.md). Calls then need "
    "`authorization: Bearer TOKEN`; sessions belong to the token's subject. A file that changes is taken up while "
    "the server runs. gdnctl token new makes a token and its entry.");
ABSL_FLAG(bool, certificate_logins, false,
          "A client's certificate (--tls-client-ca) is a login too: the subject is its one URI, else its common name, "
          "if that has no ':'. "
          "Roles are those of --tokens-file, or user where it does not list the subject.");
ABSL_FLAG(std::vector<std::string>, trusted_proxies, {},
          "SUBJECT,..: proxies that end TLS, by their own certificates' subjects: of them, and of nobody else, the "
          "metadata x-gdn-verified-subject is taken for the client's certificate.");
ABSL_FLAG(bool, reflection, true, "Tells whoever asks what the API is (gRPC's server reflection), as grpcurl does.");

// Group: Memory shared with clients on this host
ABSL_FLAG(
    std::string, shared_memory_dir, "/dev/shm",
    "DIR: folder for the files that clients on this host put tensors in (ShareMemory), on a file system in memory; "
    "empty: none are made. Where it cannot be written to, none are either, and the log says so.");
ABSL_FLAG(gdn::ByteCount, shared_memory_bytes, gdn::ByteCount{int64_t{1} << 30},
          "BYTES: most that all of them may have.");
ABSL_FLAG(gdn::ByteCount, shared_memory_bytes_per_principal, gdn::ByteCount{int64_t{256} << 20},
          "BYTES: most that those of one principal may have that --principals lists, or of one address of all others.");
ABSL_FLAG(int32_t, shared_memory_regions_per_principal, 256, "N: how many such a one may have, 1 .. 4096.");

// Group: Shutdown, logs and traces
ABSL_FLAG(
    absl::Duration, drain_timeout, absl::Seconds(30),
    "TIME: on SIGTERM or SIGINT: how long steps that were accepted, and exports and imports under way, may take to "
    "end, for example 30s.");
ABSL_FLAG(absl::Duration, drain_checkpoint_timeout, absl::Seconds(300),
          "TIME: how long sessions may take then to be made durable. Those that are not come back at their last "
          "checkpoint, and the server exits with code 3.");
ABSL_FLAG(bool, exit_on_device_failure, false,
          "End when the device has failed, with code 4, so that whoever started the server starts it again: what rests "
          "in host memory is made durable first, within the times above. Without it the server stays, and refuses "
          "steps.");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object a line.");
ABSL_FLAG(std::string, log_level, "info", "trace, debug, info, warn, error, critical or off.");

ABSL_FLAG(
    int32_t, trace_calls, 0,
    "N: keeps of the last N calls where their time went, for TraceCalls (gdnctl trace), which can change it; 0 .. "
    "10000, 0: of none.");

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
