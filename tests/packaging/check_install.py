# SPDX-License-Identifier: Apache-2.0
"""Installs the library, then builds and runs a consumer by pkg-config and one by CMake.

The installed tree is moved before CMake looks for it: its package must not hold absolute paths.
"""
import os
import shlex
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
    root, version = sys.argv[1:]
    consumer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "consumer")
    expected = f"{version} 12\n"  # 5 and 3 tokens padded to 8 and 4
    with tempfile.TemporaryDirectory() as work:
        build = os.path.join(work, "build")
        prefix = os.path.join(work, "prefix")
        off = [f"-D{part}=disabled"
               for part in ("tests", "examples", "bench", "docs", "mpi", "cuda", "nccl")]
        run("meson", "setup", build, root, f"--prefix={prefix}", "--wrap-mode=nofallback", *off)
        run("meson", "install", "-C", build)

        for folder, _, names in os.walk(os.path.join(root, "include", "dyncp")):
            for name in names:
                header = os.path.relpath(os.path.join(folder, name), root)
                if not os.path.exists(os.path.join(prefix, header)):
                    raise SystemExit(f"{header} is not installed")

        environment = dict(os.environ)
        environment["PKG_CONFIG_PATH"] = os.path.join(prefix, "share", "pkgconfig")
        found = run("pkg-config", "--modversion", "dyncp", env=environment).strip()
        if found != version:
            raise SystemExit(f"pkg-config says version {found}")
        flags = run("pkg-config", "--cflags", "--libs", "dyncp", env=environment).split()
        program = os.path.join(work, "by_pkg_config")
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        run(*compiler, "-std=c++20", os.path.join(consumer, "main.cpp"), "-o", program, *flags)
        output = run(program)
        if output != expected:
            raise SystemExit(f"by pkg-config: {output}")

        moved = os.path.join(work, "moved")
        os.rename(prefix, moved)
        tree = os.path.join(work, "cmake")
        configure = ["cmake", "-S", consumer, "-B", tree, f"-DCMAKE_PREFIX_PATH={moved}",
                     f"-DCMAKE_CXX_COMPILER={compiler[-1]}"]
        run(*configure, f"-DDYNCP_WANTED={version}")
        run("cmake", "--build", tree)
        output = run(os.path.join(tree, "consumer"))
        if output != expected:
            raise SystemExit(f"by CMake: {output}")

        major, minor, patch = version.split(".")
        for wanted, good in ((f"{major}.{minor}", True), (f"{version}...<999", True),
                             (f"{major}.{minor}.{int(patch) + 1}", False), ("999.0", False),
                             (f"998...{int(minor) + 999}", False)):
            done = subprocess.run(configure + ["--fresh", f"-DDYNCP_WANTED={wanted}"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=work)
            if (done.returncode == 0) != good:
                raise SystemExit(f"CMake, asked for {wanted}:\n{done.stdout}")
    print("installed, found, built and run")


if __name__ == "__main__":
    main()
