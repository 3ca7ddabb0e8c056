# The engine: a static library that knows neither Python nor torch.
file(GLOB_RECURSE JIT_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/jit/*.cpp)
set(LLVM_ONLY ${JIT_SOURCES})
list(FILTER LLVM_ONLY INCLUDE REGEX "/codegen/(llvm|math)/|/backend/llvm_[a-z_]*\\.cpp$")
if(NOT FASTJIT_LLVM)
  list(REMOVE_ITEM JIT_SOURCES ${LLVM_ONLY})
else()
  list(FILTER JIT_SOURCES EXCLUDE REGEX "no_backend\\.cpp$")
endif()

# Identity of the engine: a hash of its sources, part of every kernel key, so that no build runs another build's kernels.
file(GLOB_RECURSE JIT_IDENTITY CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/jit/*.cpp ${PROJECT_SOURCE_DIR}/jit/*.h ${PROJECT_SOURCE_DIR}/jit/*.def)
add_custom_command(
  OUTPUT ${PROJECT_BINARY_DIR}/build_id.cpp
  COMMAND ${CMAKE_COMMAND} -DOUT=${PROJECT_BINARY_DIR}/build_id.cpp -DROOT=${PROJECT_SOURCE_DIR}/jit -P ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake
  DEPENDS ${JIT_IDENTITY} ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake)

add_library(fj_jit STATIC ${JIT_SOURCES} ${PROJECT_BINARY_DIR}/build_id.cpp)
target_include_directories(fj_jit PUBLIC ${PROJECT_SOURCE_DIR}/jit)
target_link_libraries(fj_jit PUBLIC fj_flags ${CMAKE_DL_LIBS})
# See jit/support/older_libraries.cpp: taken at once, so that no library of the system is asked for them.
set(OLDER_LIBRARIES arc4random _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)
list(TRANSFORM OLDER_LIBRARIES PREPEND -Wl,-u,)
target_link_options(fj_jit INTERFACE ${OLDER_LIBRARIES})
if(FASTJIT_SANITIZE)
  target_compile_options(fj_jit PUBLIC -fsanitize=${FASTJIT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(fj_jit PUBLIC -fsanitize=${FASTJIT_SANITIZE})
endif()

if(FASTJIT_LLVM)
  # JITLink's interfaces change with each release; LLVM's version file accepts equal major.minor only.
  find_package(LLVM 22.1 CONFIG QUIET HINTS /usr/lib/llvm-22)
  if(NOT LLVM_FOUND)
    message(FATAL_ERROR "LLVM 22 was not found. Install llvm-22-dev, or configure with -DFASTJIT_LLVM=OFF for the GPU half alone.")
  endif()
  message(STATUS "LLVM ${LLVM_PACKAGE_VERSION} in ${LLVM_DIR}")
  # Zstandard, which LLVM asks for, is no library that every system has: its archive is linked in where there is one.
  find_library(ZSTD_ARCHIVE libzstd.a)
  if(ZSTD_ARCHIVE AND TARGET zstd::libzstd_shared)
    set_target_properties(zstd::libzstd_shared PROPERTIES IMPORTED_LOCATION ${ZSTD_ARCHIVE})
  endif()
  llvm_map_components_to_libnames(LLVM_LIBS orcjit x86codegen x86asmparser x86desc x86info passes)
  target_include_directories(fj_jit SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS})
  target_compile_definitions(fj_jit PRIVATE FASTJIT_LLVM=1 ${LLVM_DEFINITIONS_LIST})
  target_link_libraries(fj_jit PRIVATE ${LLVM_LIBS})
endif()
