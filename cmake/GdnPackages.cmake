# Debian packages, by scripts/package.sh or `cpack -G DEB`: gdn-server, gdn-tools, libgdn-client-dev and the library that
# programs built with the latter run with. Programs are installed by any `cmake --install`; what belongs to a system (unit,
# user, /etc) only where the component `server` is named.
include(GNUInstallDirs)
set(GDN_PACKAGE_MAINTAINER "gdn-service developers <gdn-service@packages.invalid>"
  CACHE STRING "Maintainer of the Debian packages")
set(debian ${CMAKE_SOURCE_DIR}/deploy/debian)

install(TARGETS gdn_server RUNTIME COMPONENT server)
install(TARGETS gdnctl gdn_bench gdn_parity RUNTIME COMPONENT tools)
set(completion ${CMAKE_BINARY_DIR}/tools/gdnctl)
install(FILES ${completion}/gdnctl.bash DESTINATION share/bash-completion/completions RENAME gdnctl COMPONENT tools)
install(FILES ${completion}/gdnctl.zsh DESTINATION share/zsh/vendor-completions RENAME _gdnctl COMPONENT tools)
install(FILES ${completion}/gdnctl.fish DESTINATION share/fish/vendor_completions.d COMPONENT tools)
# The model of `gdnctl try`.
set(try_model ${CMAKE_SOURCE_DIR}/tests/golden/qwen3_next_5)
install(FILES ${try_model}/config.json ${try_model}/model.safetensors ${try_model}/io.safetensors
  DESTINATION share/gdn-service/try-model COMPONENT tools)

# Manual pages, from the programs' help texts. OPTIONAL: without Python, or if only some programs are built, there are none.
find_package(Python3 COMPONENTS Interpreter)
set(man ${CMAKE_BINARY_DIR}/man)
set(man_pages ${man}/gdn_server.8 ${man}/gdnctl.1 ${man}/gdn_bench.1 ${man}/gdn_parity.1)
if(Python3_FOUND)
  set(command_pages ${CMAKE_SOURCE_DIR}/scripts/command_pages.py)
  add_custom_command(OUTPUT ${man_pages}
    COMMAND Python3::Interpreter ${command_pages} --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} --man ${man}
    DEPENDS gdn_server gdnctl gdn_bench gdn_parity ${command_pages} VERBATIM)
  set(always ALL)
  if(GDN_SANITIZE)  # nothing is packed, and the programs start slowly
    set(always)
  endif()
  add_custom_target(gdn_man_pages ${always} DEPENDS ${man_pages})
endif()
install(FILES ${man}/gdn_server.8 DESTINATION share/man/man8 COMPONENT server OPTIONAL)
install(FILES ${man}/gdnctl.1 ${man}/gdn_bench.1 ${man}/gdn_parity.1 DESTINATION share/man/man1 COMPONENT tools OPTIONAL)

install(FILES ${debian}/gdn-server.service DESTINATION lib/systemd/system COMPONENT server EXCLUDE_FROM_ALL)
install(FILES ${debian}/gdn-server.sysusers
  DESTINATION lib/sysusers.d RENAME gdn-server.conf COMPONENT server EXCLUDE_FROM_ALL)
install(FILES ${debian}/gpu.conf DESTINATION share/gdn-server COMPONENT server EXCLUDE_FROM_ALL)
install(FILES ${debian}/server.yaml DESTINATION /etc/gdn COMPONENT server EXCLUDE_FROM_ALL)
foreach(page install deploy configure troubleshoot)
  install(FILES ${CMAKE_SOURCE_DIR}/docs/how-to/${page}.md DESTINATION share/doc/gdn-server COMPONENT server EXCLUDE_FROM_ALL)
endforeach()

# gdn_debian_package(COMPONENT NAME SECTION DEPENDS SUMMARY): what the package of a component says of itself.
macro(gdn_debian_package component name section depends summary)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${about}")
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE
    DESTINATION share/doc/${name} RENAME copyright COMPONENT ${component} EXCLUDE_FROM_ALL)
endmacro()

set(about "gdn-service computes the Gated DeltaNet layers of language models such as\n\
Qwen3-Next and Qwen3.5, on AMD GPUs or CPUs, and keeps the states of sequences.")
set(CPACK_COMPONENTS_ALL)
set(runtime_library libgdn-client${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
gdn_debian_package(server gdn-server net "systemd | systemd-standalone-sysusers, procps"
  "gRPC server of Gated DeltaNet layers")
gdn_debian_package(tools gdn-tools net "" "tools of gdn-service: gdnctl, gdn_bench, gdn_parity")
gdn_debian_package(client ${runtime_library} libs "" "C++ client of gdn-service, the shared library")
gdn_debian_package(client-dev libgdn-client-dev libdevel
  "${runtime_library} (= ${PROJECT_VERSION}), libgrpc++-dev, libgrpc-dev, libprotobuf-dev, protobuf-compiler, \
protobuf-compiler-grpc, libabsl-dev, libc-ares-dev, libre2-dev, libssl-dev, zlib1g-dev"
  "C++ client of gdn-service, to build programs with")
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS "gdn-tools, redis-server")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "gdn-server")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA "${debian}/conffiles;${debian}/postinst;${debian}/prerm;${debian}/postrm")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# Everything that is packed; cpack itself builds nothing.
add_custom_target(packaged
  DEPENDS gdn_server gdnctl gdnctl_completion gdn_bench gdn_parity gdn_client_shared
    $<TARGET_NAME_IF_EXISTS:gdn_man_pages> $<TARGET_NAME_IF_EXISTS:gdn_client_fake_shared>)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gdn-service)
set(CPACK_PACKAGE_VENDOR gdn-service)
set(CPACK_PACKAGE_CONTACT "${GDN_PACKAGE_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
include(CPack)
