# Target "docs": the manual page and the completions, made from the table of options and manual.md, where an installation looks for them.
target_link_libraries(describe_options PRIVATE llmb_cli)
target_compile_definitions(describe_options PRIVATE LLMB_VERSION="${PROJECT_VERSION}")
set(docs "")
function(llmb_option_docs form file)  # and what the form is made from beside the table
  set(path ${CMAKE_BINARY_DIR}/share/${file})
  get_filename_component(folder ${path} DIRECTORY)
  get_filename_component(place share/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${path} COMMAND describe_options ${form} ${ARGN} > ${path} DEPENDS describe_options ${ARGN} VERBATIM)
  install(FILES ${path} DESTINATION ${place} OPTIONAL)
  set(docs ${docs} ${path} PARENT_SCOPE)
endfunction()
llmb_option_docs(man man/man1/llm-batch.1 ${CMAKE_SOURCE_DIR}/tools/package/manual.md)
llmb_option_docs(bash bash-completion/completions/llm-batch)
llmb_option_docs(zsh zsh/site-functions/_llm-batch)
llmb_option_docs(fish fish/vendor_completions.d/llm-batch.fish)
add_custom_target(docs DEPENDS ${docs})

# The program of the packages: all libraries but the C library are linked in, and of that only symbols that Debian 11 has
# are used. Objects are those of the ordinary build.
set(LLMB_STATIC "" CACHE PATH "Folder that tools/package/static_libraries.sh has made; empty: an ordinary build")
function(llmb_link_archive target name)
  find_library(LLMB_ARCHIVE_${name} lib${name}.a PATHS ${LLMB_STATIC}/lib REQUIRED)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES ${LLMB_ARCHIVE_${name}})
  else()
    foreach(config "" _RELEASE _RELWITHDEBINFO _NONE)
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION${config} ${LLMB_ARCHIVE_${name}})
    endforeach()
  endif()
endfunction()
if(LLMB_STATIC)
  llmb_link_archive(simdjson::simdjson simdjson)
  llmb_link_archive(ZLIB::ZLIB z)
  llmb_link_archive(PkgConfig::ZSTD zstd)
  llmb_link_archive(PkgConfig::PCRE2 pcre2-8)
  llmb_link_archive(PkgConfig::UTF8PROC utf8proc)
  llmb_link_archive(PkgConfig::HWY hwy)
  target_sources(llm-batch PRIVATE tools/package/older_libc.cpp)
  set(sysroot ${LLMB_STATIC}/sysroot)
  set(folder ${sysroot}/usr/lib/x86_64-linux-gnu)  # named, as the compiler looks beside itself first
  target_link_options(llm-batch PRIVATE --sysroot=${sysroot} -B${folder} -L${folder} -static-libstdc++ -static-libgcc
                      -Wl,-z,relro,-z,now
                      # In Debian 11 they are libraries of their own, which the CUDA runtime needs as well.
                      -Wl,--push-state,--no-as-needed,-lpthread,-ldl,-lrt,--pop-state)
  set_target_properties(llm-batch PROPERTIES SKIP_BUILD_RPATH ON)
endif()
