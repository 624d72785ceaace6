# gdn_gpu_library(name SOURCES a.hip ... [DEPS ...])  the GPU sources as a static library `gdn_name_lib`, alias gdn::name,
# compiled for $GDN_GPU: "host" (the SIMT executor), "hip" or "cuda".
#
# hipcc and nvcc are called by custom commands: CMake's own HIP language does not find Debian's ROCm, and one function for
# both keeps their flags side by side. Floating-point contraction is off in all three (see kernels/gpu/device.h).
set(GDN_GPU "host" CACHE STRING "Who compiles the GPU sources: host (SIMT executor, for tests), hip or cuda")
set_property(CACHE GDN_GPU PROPERTY STRINGS host hip cuda)
set(GDN_HIP_ARCHITECTURES "gfx906" CACHE STRING "Targets of hipcc, e.g. gfx906;gfx908;gfx90a")
set(GDN_CUDA_ARCHITECTURES "90a" CACHE STRING "Targets of nvcc, e.g. 80;90a")

if(GDN_GPU STREQUAL "hip")
  find_program(GDN_HIPCC hipcc PATHS /opt/rocm/bin REQUIRED)
  set(_gdn_gpu_compile ${GDN_HIPCC} -std=c++20 -O3 -fPIC -ffp-contract=off -fno-gpu-rdc -D__HIP_PLATFORM_AMD__
    -Wall -Wextra -Wno-unused-parameter -Wno-unused-command-line-argument -Wno-pass-failed)
  foreach(arch ${GDN_HIP_ARCHITECTURES})
    list(APPEND _gdn_gpu_compile --offload-arch=${arch})
  endforeach()
  find_library(GDN_GPU_RUNTIME amdhip64 PATHS /opt/rocm/lib REQUIRED)
elseif(GDN_GPU STREQUAL "cuda")
  find_program(GDN_NVCC nvcc PATHS /usr/local/cuda/bin REQUIRED)
  set(_gdn_gpu_compile ${GDN_NVCC} -x cu -std=c++20 -O3 -Xcompiler=-fPIC,-Wno-unused-parameter --fmad=false
    --expt-relaxed-constexpr -diag-suppress=20012,20013,20014,20015)
  foreach(arch ${GDN_CUDA_ARCHITECTURES})
    list(APPEND _gdn_gpu_compile -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  find_library(GDN_GPU_RUNTIME cudart_static PATHS /usr/local/cuda/lib64 REQUIRED)
elseif(NOT GDN_GPU STREQUAL "host")
  message(FATAL_ERROR "GDN_GPU is '${GDN_GPU}'; expected host, hip or cuda")
endif()

# For what is compiled to run in the host executor's fibers: ThreadSanitizer keeps one stack of calls a thread, in which
# those of a block's fibers would mix.
set(GDN_FIBER_OPTIONS)
if(GDN_SANITIZE STREQUAL "thread")
  set(GDN_FIBER_OPTIONS --param=tsan-instrument-func-entry-exit=0)
endif()

function(gdn_gpu_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(GDN_GPU STREQUAL "host")
    set_source_files_properties(${ARG_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++;-ffp-contract=off")
    gdn_library(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} gdn::simt)
    target_compile_definitions(gdn_${name}_lib PRIVATE GDN_GPU_ON_HOST)
    target_compile_options(gdn_${name}_lib PRIVATE -O2 -Wno-unknown-pragmas -Wno-unused-function ${GDN_FIBER_OPTIONS})
    return()
  endif()
  set(objects)
  foreach(source ${ARG_SOURCES})
    get_filename_component(stem ${source} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${stem}.${GDN_GPU}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${_gdn_gpu_compile} -I${CMAKE_SOURCE_DIR} -MD -MF ${object}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${source}
        -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Compiling ${source} for ${GDN_GPU}"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(gdn_${name}_lib STATIC ${objects})
  add_library(gdn::${name} ALIAS gdn_${name}_lib)
  set_target_properties(gdn_${name}_lib PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(gdn_${name}_lib PUBLIC ${ARG_DEPS} ${GDN_GPU_RUNTIME} ${CMAKE_DL_LIBS})
  if(GDN_GPU STREQUAL "cuda")
    target_link_libraries(gdn_${name}_lib PUBLIC rt)
  endif()
endfunction()
