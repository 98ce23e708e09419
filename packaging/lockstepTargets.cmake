# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
#
# The targets of the installed package and of add_subdirectory. Both set lockstep_include_dir and find Threads first.
if(NOT TARGET lockstep::lockstep)
  add_library(lockstep::lockstep INTERFACE IMPORTED)
  target_include_directories(lockstep::lockstep INTERFACE "${lockstep_include_dir}")
  target_compile_features(lockstep::lockstep INTERFACE cxx_std_20)
  target_link_libraries(lockstep::lockstep INTERFACE Threads::Threads)
endif()

# The toolkit is looked for only where the project asks for it or uses it already.
if("cuda" IN_LIST lockstep_FIND_COMPONENTS
   OR "nccl" IN_LIST lockstep_FIND_COMPONENTS
   OR CMAKE_CUDA_COMPILER
   OR CUDAToolkit_FOUND)
  find_package(CUDAToolkit QUIET)
endif()
if(CUDAToolkit_FOUND AND NOT TARGET lockstep::cuda)
  add_library(lockstep::cuda INTERFACE IMPORTED)
  if(CMAKE_CUDA_COMPILER AND NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    # A CMake that does not know that this compiler knows C++20, as 3.25 with nvcc 13.
    target_compile_options(lockstep::cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
  else()
    target_compile_features(lockstep::cuda INTERFACE cuda_std_20)
  endif()
  # The runtime that the rest of the program takes: nvcc links the static one where nothing else is said.
  target_link_libraries(
    lockstep::cuda
    INTERFACE lockstep::lockstep
              $<IF:$<STREQUAL:$<TARGET_PROPERTY:CUDA_RUNTIME_LIBRARY>,Shared>,CUDA::cudart,CUDA::cudart_static>)
endif()

# NCCL lies beside the toolkit, where the system keeps libraries, or in NCCL_ROOT.
if(TARGET lockstep::cuda AND NOT TARGET lockstep::nccl)
  find_path(
    LOCKSTEP_NCCL_INCLUDE_DIR nccl.h
    HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS}
    PATH_SUFFIXES include)
  find_library(
    LOCKSTEP_NCCL_LIBRARY nccl
    HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_DIR}
    PATH_SUFFIXES lib lib64)
  mark_as_advanced(LOCKSTEP_NCCL_INCLUDE_DIR LOCKSTEP_NCCL_LIBRARY)
  if(LOCKSTEP_NCCL_INCLUDE_DIR AND LOCKSTEP_NCCL_LIBRARY)
    add_library(lockstep::nccl INTERFACE IMPORTED)
    target_include_directories(lockstep::nccl INTERFACE "${LOCKSTEP_NCCL_INCLUDE_DIR}")
    target_link_libraries(lockstep::nccl INTERFACE lockstep::cuda "${LOCKSTEP_NCCL_LIBRARY}")
  endif()
endif()

foreach(component IN ITEMS cuda nccl)
  if(TARGET lockstep::${component})
    set(lockstep_${component}_FOUND TRUE)
  else()
    set(lockstep_${component}_FOUND FALSE)
  endif()
endforeach()
