# The extension fastjit._C: the only place with torch, Python.h and pybind11.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
include(cmake/free_threaded.cmake)
find_package(pybind11 CONFIG REQUIRED)
option(FASTJIT_INPLACE "Put the extension into python/fastjit of the source tree" OFF)
if(NOT FASTJIT_INPLACE)
  # Front ends put pybind11 into a new folder for every build; at one place ccache knows what was compiled with it.
  file(COPY ${pybind11_INCLUDE_DIR}/pybind11 DESTINATION ${PROJECT_BINARY_DIR}/include)
  set_target_properties(pybind11::pybind11_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${PROJECT_BINARY_DIR}/include)
endif()
# The releases of torch that pyproject.toml lists; the package's build backend asks for the same.
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pyproject.toml)
file(STRINGS ${PROJECT_SOURCE_DIR}/pyproject.toml TORCH_LINE REGEX "^torch = ")
string(REGEX MATCHALL "[0-9]+\\.[0-9]+\\.[0-9]+" TORCH_SUPPORTED "${TORCH_LINE}")
list(GET TORCH_SUPPORTED -1 TORCH_NEWEST)
# The second way sees the environment that pip's isolated build hides: the extension will run there.
set(TORCH_MISSING 1)
foreach(flag "" -E)
  if(TORCH_MISSING)
    execute_process(COMMAND ${Python_EXECUTABLE} ${flag} -c "import torch; print(torch.__path__[0]); print(torch.__version__)"
                    OUTPUT_VARIABLE TORCH_FACTS OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE TORCH_MISSING ERROR_QUIET)
  endif()
endforeach()
if(TORCH_MISSING)
  message(FATAL_ERROR "torch was not found for ${Python_EXECUTABLE}. Type: ${Python_EXECUTABLE} -m pip install torch==${TORCH_NEWEST}")
endif()
string(REGEX MATCH "^[^\n]*" TORCH_ROOT "${TORCH_FACTS}")
string(REGEX MATCH "[^\n]*$" TORCH_VERSION "${TORCH_FACTS}")
message(STATUS "torch ${TORCH_VERSION} in ${TORCH_ROOT}")
string(REGEX REPLACE "\\+.*" "" TORCH_RELEASE "${TORCH_VERSION}")
if(NOT TORCH_RELEASE IN_LIST TORCH_SUPPORTED)
  list(JOIN TORCH_SUPPORTED ", " TORCH_SUPPORTED)
  message(FATAL_ERROR "fastjit is built against one of torch ${TORCH_SUPPORTED}, and ${Python_EXECUTABLE} has torch ${TORCH_VERSION}. "
                      "Type: ${Python_EXECUTABLE} -m pip install torch==${TORCH_NEWEST}")
endif()

# What both parts of the extension are compiled with. torch's headers change layout without NDEBUG, so it is set in every
# build type. They come first: they bring a pybind11 of their own, and there must be one.
function(compile_with_torch target)
  target_compile_definitions(${target} PRIVATE NDEBUG FASTJIT_VERSION="${PROJECT_VERSION}" FASTJIT_TORCH_VERSION="${TORCH_VERSION}")
  if(NOT FASTJIT_OBSERVER)
    target_compile_definitions(${target} PRIVATE FASTJIT_NO_OBSERVER)
  endif()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(${target} SYSTEM PRIVATE ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
  target_compile_options(${target} PRIVATE -fpch-preprocess)
  target_link_libraries(${target} PRIVATE fj_jit fj_flags)
endfunction()

# A file that sees pybind11's headers compiles much of pybind11 again (4 s with GCC 12): capture and the running of
# programs, where few files need them, have precompiled headers without.
file(GLOB_RECURSE EXT_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp ${PROJECT_SOURCE_DIR}/src/*.c)
file(GLOB_RECURSE CORE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capture/*.cpp ${PROJECT_SOURCE_DIR}/src/dispatch/run/*.cpp)
list(REMOVE_ITEM EXT_SOURCES ${CORE_SOURCES})
add_library(fj_core OBJECT ${CORE_SOURCES})
compile_with_torch(fj_core)
target_link_libraries(fj_core PRIVATE pybind11::headers Python::Module)
set_target_properties(fj_core PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_precompile_headers(fj_core PRIVATE ${PROJECT_SOURCE_DIR}/src/pch_torch.h)

pybind11_add_module(_C MODULE NO_EXTRAS ${EXT_SOURCES} $<TARGET_OBJECTS:fj_core>)
compile_with_torch(_C)
target_link_libraries(_C PRIVATE ${TORCH_ROOT}/lib/libtorch_python.so ${TORCH_ROOT}/lib/libtorch.so
                      ${TORCH_ROOT}/lib/libtorch_cpu.so ${TORCH_ROOT}/lib/libc10.so)
file(GLOB_RECURSE TORCH_FREE CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/observe/*.cpp)
set_source_files_properties(${TORCH_FREE} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
target_precompile_headers(_C PRIVATE ${PROJECT_SOURCE_DIR}/src/pch.h)
target_link_options(_C PRIVATE -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,--as-needed
                    -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
# Torch's OpenMP runtime, by the file it ships, so that there is one pool of threads in the process.
find_package(OpenMP REQUIRED COMPONENTS CXX)
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/dispatch/run/parallel.cpp PROPERTIES
                            COMPILE_OPTIONS "${OpenMP_CXX_FLAGS}" SKIP_PRECOMPILE_HEADERS ON)
file(GLOB TORCH_OPENMP ${TORCH_ROOT}/lib/libgomp*.so* ${TORCH_ROOT}.libs/libgomp*.so*)
if(TORCH_OPENMP)
  list(GET TORCH_OPENMP 0 TORCH_OPENMP)
  target_link_libraries(_C PRIVATE ${TORCH_OPENMP})
else()
  target_link_libraries(_C PRIVATE ${OpenMP_CXX_LIBRARIES})
endif()
# GCC 16 takes the address of a SmallVector's own storage for a read of it.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/dispatch/call/derived.cpp PROPERTIES
                            COMPILE_OPTIONS $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib" BUILD_WITH_INSTALL_RPATH ON)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_link_options(_C PRIVATE -Wl,-s)
endif()
install(TARGETS _C LIBRARY DESTINATION fastjit)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION fastjit/docs FILES_MATCHING PATTERN "*.md" PATTERN examples EXCLUDE)

# What the extension was built for; python/fastjit/_load.py refuses anything else in one sentence.
set(BUILD_INFO ${PROJECT_BINARY_DIR}/_build_info.py)
list(JOIN TORCH_SUPPORTED "\", \"" TORCH_QUOTED)
if(FASTJIT_INPLACE)
  set(INPLACE True)
else()
  set(INPLACE False)
endif()
# The command for the cache starts without the extension, which has these.
set(SETTINGS ${PROJECT_SOURCE_DIR}/jit/support/settings.def)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${SETTINGS})
file(READ ${SETTINGS} SETTINGS)
foreach(id CacheMaxBytes CacheMaxEntries)
  string(REGEX MATCH "SETTING\\(${id}, \"[A-Z_]*\", \"([^\"]*)\"" FOUND "${SETTINGS}")
  if(NOT FOUND)
    message(FATAL_ERROR "jit/support/settings.def has no default for ${id}")
  endif()
  set(${id} "${CMAKE_MATCH_1}")
endforeach()
file(CONFIGURE OUTPUT ${BUILD_INFO} @ONLY CONTENT [["""Written by the build: what the extension was built for."""

PYTHON = "@Python_VERSION_MAJOR@.@Python_VERSION_MINOR@"
TORCH = "@TORCH_VERSION@"
LLVM = "@LLVM_PACKAGE_VERSION@"
SUPPORTED = ("@TORCH_QUOTED@",)
INPLACE = @INPLACE@
CACHE_MAX_BYTES = "@CacheMaxBytes@"
CACHE_MAX_ENTRIES = "@CacheMaxEntries@"
]])
install(FILES ${BUILD_INFO} DESTINATION fastjit)
if(FASTJIT_INPLACE)
  set_target_properties(_C PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/python/fastjit)
  file(COPY ${BUILD_INFO} DESTINATION ${PROJECT_SOURCE_DIR}/python/fastjit)
endif()
