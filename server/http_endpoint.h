// The server's HTTP port: /metrics, /healthz, /readyz and /statusz (docs/reference/metrics.md).
//
// /metrics, /healthz and /readyz name nobody, and anybody who reaches the port may read them. /statusz names sessions
// and callers; `may_see_status` decides who may read it.
// Thread safety: Start and destruction on one thread; SetDraining from any. Ownership: owns the port and its threads;
// borrows its sources.
//
//   GDN_ASSIGN_OR_RETURN(auto http, HttpEndpoint::Start("127.0.0.1:9464", sources, {}));
//   http->SetDraining();  // /readyz answers 503 from now on
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/observability/http_server.h"
#include "server/server_metrics.h"
#include "server/status_sampler.h"

namespace gdn {

struct HttpEndpointOptions {
  // Returns true if a caller with this "authorization" header ("" without one) may see /statusz. nullptr: callers from
  // this machine may, if they call it by a name of this machine. So a web page from elsewhere cannot read /statusz
  // through a browser that runs here.
  std::function<bool(std::string_view authorization)> may_see_status = nullptr;
  std::map<std::string, std::string> principal_names = {};  // what people call the listed accounts, by account name
  std::vector<std::string> addresses = {};                  // addresses of gRPC
};

class HttpEndpoint {
 public:
  // Opens the port at `listen` ("ADDRESS:PORT") and answers requests until the endpoint is destroyed. Errors of
  // HttpServer::Start. What `sources` refer to must outlive it.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const std::string& listen, const MetricSources& sources,
                                                             HttpEndpointOptions options);

  int port() const { return server_->port(); }
  void SetDraining() { draining_ = true; }
  StatusSampler& sampler() { return sampler_; }

 private:
  HttpEndpoint(const MetricSources& sources, HttpEndpointOptions options)
      : sources_(sources), options_(std::move(options)), sampler_(sources) {}

  bool MaySeeStatus(const HttpRequest& request) const;
  // Returns why the server is not ready, so that load balancers should send it no calls; "" if it is ready.
  std::string Trouble() const;
  std::vector<int32_t> FailedDevices() const;
  HttpResponse Metrics() const;
  HttpResponse Ready() const;
  HttpResponse Status(const HttpRequest& request) const;

  const MetricSources sources_;
  const HttpEndpointOptions options_;
  std::atomic<bool> draining_{false};
  StatusSampler sampler_;
  std::unique_ptr<HttpServer> server_;  // last, because its threads use the others
};

}  // namespace gdn
