# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""Other people's projects use lockstep in every way that docs/using.md names: each builds tests/consumers/line.cpp, line.cu or
line_nccl.cu, with warnings as errors, and the program trains and looks at what came out. Meson and CMake install the same tree,
it can be moved, and its CMake package answers as it should.
"""

import functools
import os
import re
import shlex
import shutil
import threading

from checks import WARNINGS, Checks, Compilers, run
from fail import OLDEST_CLANG, find_clang

NO_GPU = 77  # exit status of line.cu's program, and of line_nccl.cu's
PREFIX = "/opt/lockstep-was-installed-here"  # below DESTDIR only
PACKAGE = ["cmake/lockstep/lockstepConfig.cmake", "cmake/lockstep/lockstepConfigVersion.cmake"]
PACKAGE += ["cmake/lockstep/lockstepTargets.cmake", "pkgconfig/lockstep.pc"]

# A project that prints which requests for a version are met, and what components give where there is no CUDA.
QUESTIONS = """cmake_minimum_required(VERSION 3.20)
project(questions LANGUAGES CXX)
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
foreach(request IN ITEMS {requests})
  string(REPLACE "/" ";" words "${{request}}")
  find_package(lockstep ${{words}} CONFIG QUIET)
  message(STATUS "${{request}}: ${{lockstep_FOUND}} ${{lockstep_NOT_FOUND_MESSAGE}}")
  unset(lockstep_NOT_FOUND_MESSAGE)
endforeach()
if(TARGET lockstep::lockstep AND NOT TARGET lockstep::cuda AND NOT TARGET lockstep::nccl)
  message(STATUS "targets: as without CUDA")
endif()
get_target_property(folder lockstep::lockstep INTERFACE_INCLUDE_DIRECTORIES)
if(EXISTS "${{folder}}/lockstep/lockstep.hpp")
  message(STATUS "headers: there")
endif()
find_package(lockstep CONFIG REQUIRED COMPONENTS cuda)
"""
NO_CUDA = "The component cuda needs the CUDA toolkit"
NO_CUDA_FOR_NCCL = "The component nccl needs the CUDA toolkit"
# A project with CUDA that contains lockstep, and finds nothing itself.
CUDA_SUBDIRECTORY = """cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES CXX CUDA)
add_subdirectory(lockstep)
add_library(user line.cu)
target_link_libraries(user PRIVATE lockstep::cuda)
"""


def tree(folder):
    """{path: bytes} of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if not path.is_dir()}


def differences(found, wanted):
    """How one tree differs from another; None stands for bytes that may be anything."""
    problems = [f"{path} is missing" for path in sorted(wanted.keys() - found.keys())]
    problems += [f"{path} is there, and must not be" for path in sorted(found.keys() - wanted.keys())]
    both = sorted(found.keys() & wanted.keys())
    return problems + [f"{path} has other contents" for path in both if wanted[path] not in (None, found[path])]


def named_folders(found, folders):
    """Which installed files name one of these folders, and so break when they are moved."""
    return [f"{path} names {f}" for path, text in sorted(found.items()) for f in folders if f.encode() in text]


def not_shown(script, page):
    """Which command of a build.sh the page does not show."""
    lines = [line for line in script.splitlines() if line and not line.startswith("#") and line != "set -e"]
    shown = [line.strip() for line in page.splitlines()]
    return [f"docs/using.md must show: {line}" for line in lines if line not in shown]


def requests(version):
    """{request for a version or components: whether it is met, or words of the reason why not}."""
    major, minor, patch = map(int, version.split("."))
    return {
        "": True,
        f"{major}.{minor}": True,
        version: True,
        f"{version}/EXACT": True,
        f"{major}.{minor}.{patch + 1}": False,
        f"{major}.{minor + 1}": False,
        f"{major + 1}.{minor}": False,
        f"{major}.{minor}/EXACT": patch == 0,
        f"0.0...{version}": True,
        f"0.0...<{version}": False,
        f"{version}...{major}.{minor + 1}": True,
        f"{major}.{minor + 1}...{major}.{minor + 2}": False,
        "OPTIONAL_COMPONENTS/cuda": True,
        "COMPONENTS/cuda": NO_CUDA,
        "OPTIONAL_COMPONENTS/nccl": True,
        "COMPONENTS/nccl": NO_CUDA_FOR_NCCL,
        "COMPONENTS/tpu": "lockstep has no component tpu",
    }


def answered_wrongly(lines, wanted):
    """What the project QUESTIONS printed that it must not have, or lacks."""
    problems = [f"must print: {line}" for line in ("-- targets: as without CUDA", "-- headers: there") if line not in lines]
    for request, answer in wanted.items():
        mark = f"-- {request}: "
        said = next((line.removeprefix(mark) for line in lines if line.startswith(mark)), "nothing")
        met = said.startswith(("1", "TRUE"))
        if said == "nothing" or met != (answer is True) or (isinstance(answer, str) and answer not in said):
            problems.append(f"find_package(lockstep {request}) must give {answer}: {said}")
    if NO_CUDA not in " ".join(" ".join(lines).split()).split("-- headers: there")[-1]:
        problems.append(f"find_package(lockstep REQUIRED COMPONENTS cuda) must end with: {NO_CUDA}")
    return problems


def run_all(commands, folder, environment):
    """Runs commands until one fails; returns what is wrong."""
    for command in commands:
        status, lines = run(command, folder, environment)
        if status:
            return [f"{' '.join(map(str, command))} ended with {status}", *lines[-40:]]
    return []


class Installer:
    """Installs the project, and moves what it installed."""

    def __init__(self, tools, cmake):
        self.root = tools.root
        self.scratch = tools.scratch
        self.cmake = cmake
        self.environment = {"CXX": shlex.join(tools.cxx), "CXXFLAGS": "", "CMAKE_GENERATOR": "Ninja"}
        self.lock = threading.Lock()  # jobs run in parallel, and share what is installed

    def installed(self, by, **folders):
        """(what is wrong, prefix, what DESTDIR holds beside it) of the project installed by "meson" or "cmake"."""
        with self.lock:
            return self._installed(by, *folders.items())

    @functools.cache
    def _installed(self, by, *folders):
        name = "_".join([by, *(f"{key}_{value.replace('/', '_')}" for key, value in folders)])
        build, stage, prefix = (self.scratch / f"{kind}_{name}" for kind in ("build", "stage", "moved"))
        if by == "meson":
            options = [f"-D{key}={value}" for key, value in folders]
            setup = ["meson", "setup", build, self.root, f"--prefix={PREFIX}", "-Dtests=disabled", "-Dexamples=disabled"]
            commands = [[*setup, *options], ["meson", "install", "-C", build, "--quiet"]]
        else:
            options = [f"-DCMAKE_INSTALL_{key.upper()}={value}" for key, value in folders]
            commands = [
                [self.cmake, "-S", self.root, "-B", build, f"-DCMAKE_INSTALL_PREFIX={PREFIX}", *options],
                [self.cmake, "--install", build],
            ]
        problems = run_all(commands, None, {**self.environment, "DESTDIR": str(stage)})
        if not problems:
            (stage / PREFIX[1:]).rename(prefix)
        return problems, prefix, stage


def main():
    tools = Compilers("consumers")
    checks = Checks()
    root = tools.root
    cmake = shutil.which("cmake")
    installer = Installer(tools, cmake)
    headers = {f"include/{path}": text for path, text in tree(root / "include").items()}
    page = root / "docs/using.md"
    version = re.search(r"^  version: '([^']*)'", (root / "meson.build").read_text(), re.MULTILINE).group(1)
    # What every check reads: a change of one of these runs all of them again.
    sources = [root / "meson.build", root / "meson_options.txt", root / "CMakeLists.txt", os.path.realpath(__file__)]
    sources += [path for folder in ("include", "packaging") for path in (root / folder).rglob("*") if path.is_file()]
    sources = [str(path) for path in sources]
    jobs = []

    def add(name, work, *key, files=()):
        programs = " ".join(tools.version(program) for program in ("meson", cmake, tools.cxx[0]) if program)
        jobs.append((" | ".join([name, *key, programs, " ".join(tools.cxx)]), lambda: (work(), [*sources, *map(str, files)])))

    def add_install(by):
        def usual():
            problems, prefix, beside = installer.installed(by)
            if problems:
                return problems
            found = tree(prefix)
            wanted = {**headers, **{f"share/{path}": None for path in PACKAGE}}
            places = [PREFIX, str(tools.scratch), str(root)]
            return differences(found, wanted) + named_folders(found, places) + differences(tree(beside), {})

        def other_folders():
            problems, prefix, _ = installer.installed(by, includedir="a/b", datadir="c/d/e")
            if problems:
                return problems
            found = tree(prefix)
            moved = {path.replace("include", "a/b", 1): text for path, text in headers.items()}
            problems = differences(found, {**moved, **{f"c/d/e/{path}": None for path in PACKAGE}})
            return problems + same_headers(prefix / "c/d/e/pkgconfig", prefix / "a/b")

        def outside():
            problems, _, beside = installer.installed(by, datadir=f"{PREFIX}-data")
            return problems or says(beside / f"{PREFIX[1:]}-data/pkgconfig", f"{PREFIX}/include")

        add(f"{by} installs headers and package files, and they can be moved", usual)
        add(f"{by} installs into other folders", other_folders)
        add(f"{by} installs package files outside of the prefix", outside)

    def includedir(folder):
        environment = {"PKG_CONFIG_PATH": str(folder), "PKG_CONFIG_LIBDIR": ""}
        return run(["pkg-config", "--variable=includedir", "lockstep"], None, environment)

    def same_headers(folder, wanted):
        status, lines = includedir(folder)
        good = status == 0 and len(lines) == 1 and os.path.realpath(lines[0]) == os.path.realpath(wanted)
        return [] if good else [f"pkg-config must find the headers in {wanted}", *lines]

    def says(folder, wanted):
        status, lines = includedir(folder)
        return [] if (status, lines) == (0, [wanted]) else [f"pkg-config must say {wanted}", *lines]

    def add_consumer(name, folder, source="line.cpp", key=(), uses="the tree", **environment):
        def work():
            home = tools.scratch / re.sub(r"\W+", "_", name)
            shutil.copytree(root / "tests/consumers" / folder, home)
            shutil.copy(root / "tests/consumers" / source, home)
            # Searches find this copy of lockstep and no other one.
            variables = {**environment, "CMAKE_GENERATOR": "Ninja", "PKG_CONFIG_LIBDIR": "", "PKG_CONFIG_PATH": ""}
            if uses == "what is installed":
                problems, prefix, _ = installer.installed("meson")
                if problems:
                    return problems
                variables["CMAKE_PREFIX_PATH"] = variables["LOCKSTEP"] = str(prefix)
                variables["PKG_CONFIG_PATH"] = str(prefix / "share/pkgconfig")
            else:
                variables["LOCKSTEP"] = str(root)
                for place in (home / "subprojects", home):
                    place.mkdir(exist_ok=True)
                    (place / "lockstep").symlink_to(root)
            build = home / "build"
            if (home / "CMakeLists.txt").exists():
                commands, program = [[cmake, "-S", home, "-B", build], [cmake, "--build", build]], build / "line"
            elif (home / "meson.build").exists():
                commands, program = [["meson", "setup", build], ["meson", "compile", "-C", build]], build / "line"
            else:
                commands, program = [["./build.sh"]], home / "line"
            problems = run_all(commands, home, variables)
            if problems:
                return problems
            status, lines = run([program])
            return [] if status == 0 or (status == NO_GPU and not gpu) else [f"the program ended with {status}", *lines]

        used = root / "tests/consumers" / folder
        add(name, work, *key, files=[root / "tests/consumers" / source, *used.iterdir()])

    # ---- what is installed ----

    add_install("meson")
    if cmake:
        add_install("cmake")

        def same():
            meson, cmake = installer.installed("meson"), installer.installed("cmake")
            return meson[0] + cmake[0] or differences(tree(cmake[1]), tree(meson[1]))

        add("cmake installs what meson installs", same)

        def add_questions(name, **folders):
            def work():
                problems, prefix, _ = installer.installed("meson", **folders)
                home = tools.scratch / ("questions_" + "_".join(folders))
                home.mkdir()
                asked = requests(version)
                items = " ".join(f'"{request}"' for request in asked)
                (home / "CMakeLists.txt").write_text(QUESTIONS.format(requests=items))
                place = prefix / folders.get("datadir", "share") / "cmake/lockstep"
                variables = {**installer.environment, "lockstep_DIR": str(place)}
                _, lines = run([cmake, "-S", home, "-B", home / "build"], None, variables)
                wrong = answered_wrongly(lines, asked)
                return problems or (wrong and [*wrong, *lines[-40:]])

            add(name, work, version)

        add_questions("the CMake package answers requests for versions and components")
        add_questions("the CMake package in other folders", includedir="a/b", datadir="c/d/e")
    else:
        checks.skip("what cmake installs, and the CMake package", "cmake is not there")

    # ---- projects ----

    gpu = shutil.which("nvidia-smi") is not None and run(["nvidia-smi", "-L"])[0] == 0
    host = {"CXX": shlex.join(tools.cxx), "CXXFLAGS": " ".join(WARNINGS)}
    installed = {"uses": "what is installed"}
    add_consumer("flags for a compiler, and the source tree", "plain", **host)
    add_consumer("flags for a compiler, and what is installed", "plain", **installed, **host)
    add_consumer("pkg-config", "pkg_config", **installed, **host)
    add_consumer("Meson, as a subproject", "meson", **host)
    add_consumer("Meson, and what is installed", "meson", **installed, **host)
    clang = find_clang()
    if clang:
        add_consumer("flags for clang", "plain", key=[tools.version(clang)], **{**host, "CXX": clang})
    else:
        checks.skip("flags for clang", f"no clang++ {OLDEST_CLANG} or newer is there")

    for name, folder, options in (
        ("CMake, find_package", "cmake_find_package", installed),
        ("CMake, add_subdirectory", "cmake_add_subdirectory", {}),
        ("CMake, FetchContent", "cmake_fetch_content", {}),
    ):
        if cmake:
            add_consumer(name, folder, **options, **host)
        else:
            checks.skip(name, "cmake is not there")

    cuda = {"CUDACXX": tools.nvcc, "CUDAHOSTCXX": tools.cxx[-1], "CUDAFLAGS": "-Werror all-warnings", **host}
    cuda_names = ("flags for nvcc", "CMake, find_package with CUDA", "CMake, add_subdirectory with CUDA")
    if tools.nvcc:
        key = [tools.version(tools.nvcc), f"GPU {gpu}"]
        add_consumer(cuda_names[0], "plain_nvcc", "line.cu", key, **cuda)
        if cmake:
            add_consumer(cuda_names[1], "cmake_cuda", "line.cu", key, **installed, **cuda)

            def configure():
                home = tools.scratch / "cuda_subdirectory"
                home.mkdir()
                (home / "CMakeLists.txt").write_text(CUDA_SUBDIRECTORY)
                shutil.copy(root / "tests/consumers/line.cu", home)
                (home / "lockstep").symlink_to(root)
                return run_all([[cmake, "-S", home, "-B", home / "build"]], None, {**cuda, "CMAKE_GENERATOR": "Ninja"})

            add(f"{cuda_names[2]}, up to its build files", configure, *key)
            if tools.nccl:
                add_consumer("CMake, find_package with NCCL", "cmake_nccl", "line_nccl.cu", key, **installed, **cuda)
            else:
                checks.skip("CMake, find_package with NCCL", "NCCL is not there")
        if not gpu:
            checks.skip("the programs of line.cu and line_nccl.cu", "they were built, and no GPU is there to run them")
    for name in cuda_names[0 if not tools.nvcc else 1 :]:
        if not tools.nvcc:
            checks.skip(name, "nvcc is not there")
        elif not cmake:
            checks.skip(name, "cmake is not there")

    for name, problems in tools.run(jobs).items():
        checks.check(name.split(" | ", maxsplit=1)[0], problems)
    text = page.read_text()
    for script in sorted((root / "tests/consumers").glob("*/build.sh")):
        checks.check(f"docs/using.md shows {script.parent.name}/build.sh", not_shown(script.read_text(), text))
    checks.finish()


if __name__ == "__main__":
    main()
