# Finds the CUDA Toolkit, says for which architectures to compile, and makes llmb_kernels_cuda and llmb_backend_cuda.
# nvcc is called by custom commands: CMake's own support for the language would cost every configuration some seconds.
find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  if(LLMB_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LLMB_CUDA=ON needs the CUDA Toolkit 12.5 or newer, and nvcc was not found: install it, put its bin "
                        "folder on PATH or set CUDAToolkit_ROOT; or build with LLMB_CUDA=AUTO or OFF")
  endif()
  return()
endif()
if(CUDAToolkit_VERSION VERSION_LESS 12.5)
  if(LLMB_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LLMB_CUDA=ON needs the CUDA Toolkit 12.5 or newer; ${CUDAToolkit_NVCC_EXECUTABLE} is of "
                        "${CUDAToolkit_VERSION}")
  endif()
  message(STATUS "CUDA: ${CUDAToolkit_VERSION} is too old, 12.5 is needed; building without it")
  return()
endif()

# "9.0": the compute capability of the first GPU; "" where there is none.
set(gpu_capability "")
find_program(LLMB_NVIDIA_SMI nvidia-smi)
mark_as_advanced(LLMB_NVIDIA_SMI)
if(LLMB_NVIDIA_SMI)
  execute_process(COMMAND ${LLMB_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE gpu_capability ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" gpu_capability "${gpu_capability}")
endif()

# sm_90a is for wgmma and TMA; the PTX serves whatever comes later.
set(all_architectures -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_89,code=[sm_89,compute_89]
    -gencode=arch=compute_90a,code=sm_90a)
set(cuda_architectures ${all_architectures})
set(LLMB_CUDA_ARCHITECTURES "" CACHE STRING "Compute capabilities to build for, such as 90a or 80;90a; empty: as LLMB_CUDA says")
if(LLMB_CUDA STREQUAL "ON" OR gpu_capability OR EXISTS /dev/nvidia0)
  set(LLMB_CUDA_PROGRAM ON)
endif()
if(LLMB_CUDA STREQUAL "AUTO" AND gpu_capability)
  string(REPLACE "." "" number ${gpu_capability})
  string(REGEX REPLACE "^90$" "90a" number ${number})
  set(cuda_architectures -gencode=arch=compute_${number},code=sm_${number})
elseif(NOT LLMB_CUDA_PROGRAM)  # a check that it compiles: half of the time of all of them
  set(cuda_architectures -gencode=arch=compute_90a,code=sm_90a)
endif()
if(LLMB_CUDA_ARCHITECTURES)
  list(TRANSFORM LLMB_CUDA_ARCHITECTURES REPLACE "^(.+)$" "-gencode=arch=compute_\\1,code=sm_\\1" OUTPUT_VARIABLE cuda_architectures)
endif()
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, GPU ${gpu_capability}, in the program: ${LLMB_CUDA_PROGRAM}, "
               "${cuda_architectures}")

# ---- kernels ----------------------------------------------------------------------------------------------------------
# Products and sums are fused where the source says fmaf and nowhere else, as on the host layer: otherwise each kernel that a
# function is inlined into may round it in its own way, and bits would depend on which kernel computes a row.
set(nvcc_flags -std=c++20 --expt-relaxed-constexpr -fmad=false -Xcompiler=-Wall,-ffp-contract=off
    -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_SOURCE_DIR} ${cuda_architectures})
# As a check that they compile, without optimisation and without the host's part, which the host layer compiles: a tenth of the
# time.
set(nvcc_flag -c)
set(suffix o)
if(LLMB_CUDA_PROGRAM)
  list(APPEND nvcc_flags -O3 -lineinfo)
else()
  set(nvcc_flag -fatbin)
  set(suffix fatbin)
  if(NOT CUDAToolkit_VERSION VERSION_LESS 13.0)
    list(APPEND nvcc_flags --Ofast-compile=max)
  endif()
endif()
# Every program that holds the kernels is several times smaller. A build of CUDA 13 needs a driver that can read it anyway.
if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13.0)
  list(APPEND nvcc_flags --compress-mode=size)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND nvcc_flags -ccbin ${CMAKE_CXX_COMPILER})
endif()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
set(cuda_objects)
foreach(source ${cuda_sources})
  get_filename_component(stem ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${stem}.${suffix})
  add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM COMMAND_EXPAND_LISTS
    COMMENT "nvcc ${stem}.cu"
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_flags} -MD -MF ${object}.d ${nvcc_flag} ${source} -o ${object})
  list(APPEND cuda_objects ${object})
endforeach()
file(GLOB cuda_host_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cpp)
if(NOT LLMB_CUDA_PROGRAM)
  add_custom_target(cuda_check ALL DEPENDS ${cuda_objects})
  set(cuda_objects)
endif()
add_library(llmb_kernels_cuda STATIC ${cuda_objects} ${cuda_host_sources})
# cuBLASLt is loaded at run time (kernels/cuda/cublas_lt.h), first from where the toolkit has it.
target_link_libraries(llmb_kernels_cuda PUBLIC llmb_core CUDA::cudart_static)
target_compile_options(llmb_kernels_cuda PRIVATE -Wno-unknown-pragmas)  # unroll, for the host's compiler
target_link_options(llmb_kernels_cuda INTERFACE LINKER:-rpath,${CUDAToolkit_LIBRARY_DIR})
set_target_properties(llmb_kernels_cuda PROPERTIES LINKER_LANGUAGE CXX)

llmb_library(backend_cuda src/backend/cuda DEPENDS llmb_model llmb_kernels_cuda llmb_backend_ranks)

if(LLMB_CUDA_PROGRAM)
  target_compile_definitions(llmb_backend PUBLIC LLMB_HAS_CUDA=1)
  target_link_libraries(llmb_backend PUBLIC llmb_backend_cuda)
endif()
