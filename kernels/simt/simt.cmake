# The host SIMT layer, and kernels/cuda and src/backend/cuda compiled on it by the C++ compiler. Only tests link them;
# included by tests/CMakeLists.txt.
find_package(boost_context REQUIRED)

file(GLOB simt_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/simt/*.cpp)
add_library(llmb_simt STATIC ${simt_sources})
target_link_libraries(llmb_simt PUBLIC llmb_base Boost::context)
target_include_directories(llmb_simt BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/kernels/simt/include)
target_compile_definitions(llmb_simt PUBLIC LLMB_SIMT)
# Kernels read elements 16 bytes at a time, which nvcc allows.
target_compile_options(llmb_simt PUBLIC -fno-strict-aliasing -Wno-unknown-pragmas -Wno-maybe-uninitialized
                       -Wno-psabi)

# Copies of the kernels in which every __shared__ variable is followed by what fills it with NaN bytes.
set(simt_copies ${CMAKE_BINARY_DIR}/simt)
set(shared_variables ${CMAKE_SOURCE_DIR}/kernels/simt/shared_variables.sed)
file(MAKE_DIRECTORY ${simt_copies}/kernels/cuda)
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu ${CMAKE_SOURCE_DIR}/kernels/cuda/*.h)
file(GLOB kernel_host_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cpp)
set(kernel_copies)
foreach(source ${kernel_sources})
  get_filename_component(name ${source} NAME)
  string(REGEX REPLACE "\\.cu$" ".cu.cpp" name ${name})
  set(copy ${simt_copies}/kernels/cuda/${name})
  file(RELATIVE_PATH line_name ${CMAKE_SOURCE_DIR} ${source})
  add_custom_command(OUTPUT ${copy} DEPENDS ${source} ${shared_variables} VERBATIM
    COMMAND sed -E -e "1i #line 1 \"${line_name}\"" -f ${shared_variables} ${source} > ${copy})
  list(APPEND kernel_copies ${copy})
endforeach()
add_library(llmb_kernels_cuda_simt STATIC ${kernel_copies} ${kernel_host_sources})
target_link_libraries(llmb_kernels_cuda_simt PUBLIC llmb_simt llmb_core)
target_include_directories(llmb_kernels_cuda_simt BEFORE PRIVATE ${simt_copies})
# For GCC the copies are not the main file that their #line names.
target_compile_options(llmb_kernels_cuda_simt PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
set_target_properties(llmb_kernels_cuda_simt PROPERTIES LINKER_LANGUAGE CXX)

file(GLOB backend_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cpp)
add_library(llmb_backend_cuda_simt STATIC ${backend_sources})
target_link_libraries(llmb_backend_cuda_simt PUBLIC llmb_kernels_cuda_simt llmb_model llmb_backend_ranks)
# As llmb_library() does it, with these compiler options. The kernels' copies are too long to be compiled together.
if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  target_precompile_headers(llmb_simt PRIVATE ${LLMB_PRECOMPILED})
  target_precompile_headers(llmb_kernels_cuda_simt REUSE_FROM llmb_simt)
  target_precompile_headers(llmb_backend_cuda_simt REUSE_FROM llmb_simt)
  foreach(target llmb_simt llmb_backend_cuda_simt)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${LLMB_FILES_AS_ONE})
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endforeach()
endif()
