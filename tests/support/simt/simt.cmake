# The host SIMT layer: kernels/cuda compiled by the C++ compiler, and the tests that run on it.
find_package(boost_context REQUIRED)

file(GLOB simt_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/simt/*.cpp)
add_library(llmb_simt STATIC ${simt_sources})
target_link_libraries(llmb_simt PUBLIC llmb_base Boost::context)
target_include_directories(llmb_simt BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/tests/support/simt/include)
target_compile_definitions(llmb_simt PUBLIC LLMB_SIMT)
# Kernels read elements 16 bytes at a time, which nvcc allows.
target_compile_options(llmb_simt PUBLIC -fno-strict-aliasing -Wno-unknown-pragmas -Wno-maybe-uninitialized)

# A .cu file becomes a .cpp file in which every __shared__ variable is followed by what fills it with NaN bytes.
function(llmb_simt_kernels result)
  set(outputs)
  foreach(source ${ARGN})
    get_filename_component(stem ${source} NAME_WE)
    set(output ${CMAKE_BINARY_DIR}/simt/${stem}.cpp)
    add_custom_command(OUTPUT ${output} DEPENDS ${source} ${CMAKE_SOURCE_DIR}/tests/support/simt/shared_variables.sed
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/simt
      COMMAND sed -E -e "1i #line 1 \"${source}\"" -f ${CMAKE_SOURCE_DIR}/tests/support/simt/shared_variables.sed ${source} > ${output}
      VERBATIM)
    list(APPEND outputs ${output})
  endforeach()
  set(${result} ${outputs} PARENT_SCOPE)
endfunction()

file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
set(kernel_host_sources)
llmb_simt_kernels(simt_kernels ${kernel_sources})
add_library(llmb_kernels_cuda_simt STATIC ${simt_kernels} ${kernel_host_sources})
target_link_libraries(llmb_kernels_cuda_simt PUBLIC llmb_simt llmb_core)
set_target_properties(llmb_kernels_cuda_simt PROPERTIES LINKER_LANGUAGE CXX)

file(GLOB test_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/kernels/cuda/*_test.cpp)
foreach(source ${test_sources})
  get_filename_component(stem ${source} NAME_WE)
  add_executable(kernels_simt_${stem} ${source})
  target_link_libraries(kernels_simt_${stem} PRIVATE llmb_kernels_cuda_simt llmb_test_support llmb_test_main)
  target_compile_definitions(kernels_simt_${stem} PRIVATE LLMB_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME kernels_simt/${stem} COMMAND kernels_simt_${stem})
  set_tests_properties(kernels_simt/${stem} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 LABELS kernels_simt)
endforeach()
