# gdn_library(name SOURCES ... [DEPS ...] [PRIVATE_DEPS ...])  a static library `gdn_name_lib`, alias gdn::name
# gdn_binary(name SOURCES ... [DEPS ...])                      a program in build/<preset>/bin
# gdn_test(name SOURCES ... [DEPS ...] [LABELS ...])           a GoogleTest program, its cases known to ctest
#
# Sources are compiled several at a time (CMake's unity build): a quarter of the work, since most of a file's is its headers.
# So a name in an unnamed namespace must be unique within its folder's library (tests/arrows/check_unnamed.py), and a test
# file has a namespace of its own (gdn::<file>). Without -DGDN_UNITY=OFF a missing include can hide behind a neighbour's;
# the preset `dev` sets it.
option(GDN_UNITY "Compile several sources at a time" ON)
set(GDN_UNITY_FILES 12)
find_program(GDN_GOLD ld.gold)
mark_as_advanced(GDN_GOLD)
set(GDN_WARNINGS -Wall -Wextra -Wshadow -Wno-unused-parameter $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)

# Lets ThreadSanitizer see what orders threads inside Debian's Abseil and gRPC, which are built without it.
if(GDN_SANITIZE STREQUAL "thread")
  add_library(gdn_tsan OBJECT
    ${CMAKE_SOURCE_DIR}/tests/tsan/absl_synchronization.cc
    ${CMAKE_SOURCE_DIR}/tests/tsan/grpc_completion.cc)
  target_compile_options(gdn_tsan PRIVATE -fsanitize=thread)
  target_link_libraries(gdn_tsan PUBLIC absl::synchronization ${CMAKE_DL_LIBS})
endif()

function(_gdn_program target)
  if(TARGET gdn_tsan)
    target_link_libraries(${target} PRIVATE gdn_tsan)
  endif()
endfunction()

function(_gdn_common target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "^${CMAKE_BINARY_DIR}|[$]<")
  foreach(source ${sources})
    # Highway compiles such a file once for each instruction set: by itself.
    file(STRINGS ${source} once_a_target REGEX "hwy/foreach_target.h")
    if(once_a_target)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      if(GDN_SANITIZE)  # by -O2 one takes a quarter of an hour and more, by -O1 half a minute
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -O1)
      endif()
    endif()
  endforeach()
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${target} PRIVATE ${GDN_WARNINGS})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${GDN_UNITY} UNITY_BUILD_BATCH_SIZE ${GDN_UNITY_FILES})
  if(GDN_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${GDN_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${GDN_SANITIZE})
  endif()
endfunction()

function(gdn_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(gdn_${name}_lib STATIC ${ARG_SOURCES})
  add_library(gdn::${name} ALIAS gdn_${name}_lib)
  target_link_libraries(gdn_${name}_lib PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  _gdn_common(gdn_${name}_lib)
endfunction()

function(gdn_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  _gdn_common(${name})
  _gdn_program(${name})
endfunction()

function(gdn_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  _gdn_common(${name})
  _gdn_program(${name})
  # Optimising a test's own code takes longer than running it; what it tests, and its references, are libraries.
  if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    target_compile_options(${name} PRIVATE -Og)
    # Sanitizers' reports and whoever debugs a test (preset dev) need its lines.
    if(GDN_UNITY AND NOT GDN_SANITIZE)
      target_compile_options(${name} PRIVATE -g0)
      # Each of a hundred tests links the whole product, and this linker of binutils takes half the time.
      if(GDN_GOLD)
        target_link_options(${name} PRIVATE -fuse-ld=gold)
      endif()
    endif()
  endif()
  target_compile_definitions(${name} PRIVATE
    GDN_SOURCE_DIR="${CMAKE_SOURCE_DIR}" GDN_BINARY_DIR="${CMAKE_BINARY_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT 600 LABELS "${ARG_LABELS}")
endfunction()
