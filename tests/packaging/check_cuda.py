# SPDX-License-Identifier: Apache-2.0
"""Installs this build, then builds and runs a user of its CUDA backend by pkg-config, CMake, Meson.

check_cuda.py BUILD VERSION CUDA_LIBRARY_FOLDERS: nothing is compiled by nvcc again.
"""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile


def run(*command, **options):
    print("$", shlex.join(command), flush=True)
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **options)
    if done.returncode != 0:
        print(done.stdout)
        raise SystemExit(f"status {done.returncode}")
    return done.stdout


def main():
    build, version, cuda_lib = sys.argv[1:]
    consumer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "consumer_cuda")
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    with tempfile.TemporaryDirectory() as work:
        staged = os.path.join(work, "staged")
        run("meson", "install", "-C", build, "--no-rebuild", "--destdir", staged)
        # The prefix of the build, wherever it was meant to be, becomes a folder of this test.
        configs = glob.glob(os.path.join(staged, "**", "dyncp-config.cmake"), recursive=True)
        prefix = os.path.join(work, "prefix")
        shutil.move(os.path.abspath(os.path.join(os.path.dirname(configs[0]), "..", "..", "..")),
                    prefix)
        found = glob.glob(os.path.join(prefix, "**", "dyncp*.pc"), recursive=True)
        if sorted(os.path.basename(f) for f in found) != ["dyncp-cuda.pc", "dyncp.pc"]:
            raise SystemExit(f"pkg-config files: {found}")
        for name in found:
            with open(name, encoding="utf-8") as f:
                text = f.read()
            with open(name, "w", encoding="utf-8") as f:
                f.write(re.sub(r"(?m)^prefix=.*$", f"prefix={prefix}", text))
        libraries = {os.path.dirname(f)
                     for f in glob.glob(os.path.join(prefix, "lib*", "**", "libdyncp_cuda*"),
                                        recursive=True)}
        environment = dict(os.environ)
        environment["PKG_CONFIG_PATH"] = os.pathsep.join(os.path.dirname(f) for f in found)
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, cuda_lib])
        environment["LIBRARY_PATH"] = cuda_lib

        def check(program, how):
            output = run(program, env=environment).splitlines()
            print("\n".join(output))
            if output[0] != f"dyncp {version}":
                raise SystemExit(f"by {how}: {output}")

        if run("pkg-config", "--modversion", "dyncp-cuda", env=environment).strip() != version:
            raise SystemExit("pkg-config says another version")
        flags = run("pkg-config", "--cflags", "--libs", "dyncp-cuda", env=environment).split()
        program = os.path.join(work, "by_pkg_config")
        linked = [f"-Wl,-rpath-link,{cuda_lib}"]
        run(*compiler, "-std=c++20", os.path.join(consumer, "main.cpp"), "-o", program, *flags,
            *linked, env=environment)
        check(program, "pkg-config")

        tree = os.path.join(work, "cmake")
        run("cmake", "-S", consumer, "-B", tree, f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={compiler[-1]}", f"-DCMAKE_EXE_LINKER_FLAGS={linked[0]}")
        run("cmake", "--build", tree)
        check(os.path.join(tree, "consumer"), "CMake")

        tree = os.path.join(work, "meson")
        run("meson", "setup", tree, consumer, "--wrap-mode=nofallback",
            f"-Dcpp_link_args={linked[0]}", env=environment)
        run("ninja", "-C", tree, env=environment)
        check(os.path.join(tree, "consumer"), "Meson")

        # Without the component it is an error that says what to do, or no error if it is optional.
        os.remove(os.path.join(os.path.dirname(glob.glob(
            os.path.join(prefix, "**", "dyncp-cuda.cmake"), recursive=True)[0]),
            "dyncp-cuda.cmake"))
        done = subprocess.run(["cmake", "-S", consumer, "-B", os.path.join(work, "without"),
                               f"-DCMAKE_PREFIX_PATH={prefix}",
                               f"-DCMAKE_CXX_COMPILER={compiler[-1]}"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode == 0 or "-Dcuda=enabled" not in done.stdout:
            raise SystemExit(f"CMake, without the component:\n{done.stdout}")
    print("installed, found, built and run")


if __name__ == "__main__":
    main()
