# Every third-party package, all from Debian 12 (scripts/setup.sh installs them).
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)  # gRPC's, for HMAC
find_package(spdlog CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
if(NOT GDN_FUZZ)
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # oneDNN's threads are held at one through its API
endif()
find_library(MICROHTTPD_LIBRARY microhttpd REQUIRED)  # the HTTP port
if(NOT TARGET gdn::microhttpd)
  add_library(gdn::microhttpd UNKNOWN IMPORTED)
  set_target_properties(gdn::microhttpd PROPERTIES IMPORTED_LOCATION ${MICROHTTPD_LIBRARY})
endif()
find_package(prometheus-cpp CONFIG REQUIRED)  # what it answers to a scrape
find_package(benchmark CONFIG REQUIRED)
find_package(Boost REQUIRED COMPONENTS context)  # fibers of the SIMT executor
# Not dnnl's own CMake config: it asks for OpenCL's development files, which nothing here uses.
find_library(DNNL_LIBRARY dnnl REQUIRED)
if(NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY})
endif()
find_library(XXHASH_LIBRARY xxhash REQUIRED)
find_library(HIREDIS_LIBRARY hiredis REQUIRED)  # its headers are included as <hiredis/...>
if(NOT TARGET gdn::hiredis)
  add_library(gdn::hiredis UNKNOWN IMPORTED)
  set_target_properties(gdn::hiredis PROPERTIES IMPORTED_LOCATION ${HIREDIS_LIBRARY})
endif()
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
if(GDN_BUILD_TESTS AND NOT GDN_FUZZ)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
