# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""A program of somebody's CMake project uses lockstep through add_subdirectory."""

import shutil

from checks import Checks, Compilers, run

PROJECT = """cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES CXX)
add_subdirectory("{root}" lockstep)
add_executable(user main.cpp)
target_link_libraries(user PRIVATE lockstep::lockstep)
"""
PROGRAM = """#include <lockstep/lockstep.hpp>
static_assert(__cplusplus >= 202002L);
int main() { return LOCKSTEP_VERSION > 0 ? 0 : 1; }
"""


def main():
    tools = Compilers("cmake")
    checks = Checks()
    name = "a CMake project uses lockstep::lockstep by add_subdirectory"
    cmake = shutil.which("cmake")
    if not cmake:
        checks.skip(name, "cmake is not there")
        checks.finish()

    def work():
        user = tools.scratch / "user"
        user.mkdir()
        (user / "CMakeLists.txt").write_text(PROJECT.format(root=tools.root))
        (user / "main.cpp").write_text(PROGRAM)
        for command in (
            [cmake, "-S", user, "-B", user / "build", f"-DCMAKE_CXX_COMPILER={tools.cxx[-1]}"],
            [cmake, "--build", user / "build"],
            [user / "build/user"],
        ):
            status, lines = run(command)
            if status:
                return [f"{command[0]} ended with {status}", *lines[-30:]], []
        headers = [path for path in (tools.root / "include").rglob("*") if path.is_file()]
        return [], [str(path) for path in [tools.root / "CMakeLists.txt", *headers]]

    checks.check(name, tools.run([(name, work)])[name])
    checks.finish()


if __name__ == "__main__":
    main()
