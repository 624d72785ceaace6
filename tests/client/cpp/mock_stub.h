// The generated mock of the service's stub, which lacks an include guard.
//
//   v1::MockGdnServiceStub stub;
#pragma once

#include "gdn/v1/service_mock.grpc.pb.h"
