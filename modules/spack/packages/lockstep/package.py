"""Lockstep for Spack 1.0 or newer, from the checkout that holds this file:

    spack repo add modules/spack
    spack install lockstep             # or lockstep+cuda cuda_arch=90
"""

import os
import zipfile

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *

# modules/spack/packages/lockstep/package.py
CHECKOUT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4))


class Lockstep(MakefilePackage, CudaPackage):
    """Trains ResNets and language models data-parallel on HPC clusters: MPI, HDF5, oneDNN on processors, cuDNN and NCCL on GPUs."""

    git = "file://" + CHECKOUT

    license("Apache-2.0")

    version("main", branch="main")

    depends_on("cxx", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    depends_on("hdf5@1.10:")
    depends_on("onednn@3.2: cpu_runtime=omp")
    depends_on("cli11")
    depends_on("yaml-cpp")
    depends_on("nlohmann-json")
    depends_on("fmt")
    depends_on("spdlog+shared+fmt_external")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    # 22 and newer need Abseil's libraries beside their own.
    depends_on("protobuf@3.12:3.21")
    depends_on("xxhash")
    depends_on("pcre2+jit")
    depends_on("utf8proc")
    depends_on("arrow@21:+parquet+brotli+lz4+snappy+zlib+zstd")
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("cudnn@9.8:")
        depends_on("nccl@2.20:")
        conflicts("cuda_arch=none", msg="name the GPUs to compile for, such as cuda_arch=90")

    # Headers only, and no package of Spack's. The file is that of scripts/deps.sh.
    resource(
        name="cudnn-frontend",
        url="https://files.pythonhosted.org/packages/cp311/n/nvidia-cudnn-frontend/"
        "nvidia_cudnn_frontend-1.32.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        sha256="c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0",
        expand=False,
        placement="cudnn-frontend",
        when="+cuda",
    )

    def edit(self, spec, prefix):
        folder = os.path.join(self.stage.source_path, "cudnn-frontend")
        if spec.satisfies("+cuda"):
            for name in os.listdir(folder):
                if name.endswith(".whl"):
                    zipfile.ZipFile(os.path.join(folder, name)).extractall(folder)

    @property
    def variables(self):
        """What the Makefile takes: where each library is."""
        spec = self.spec
        places = {
            "MPI_HOME": "mpi",
            "HDF5_HOME": "hdf5",
            "DNNL_ROOT": "onednn",
            "CLI11_HOME": "cli11",
            "YAML_CPP_HOME": "yaml-cpp",
            "JSON_HOME": "nlohmann-json",
            "FMT_HOME": "fmt",
            "SPDLOG_HOME": "spdlog",
            "JPEG_HOME": "libjpeg-turbo",
            "PNG_HOME": "libpng",
            "PROTOBUF_HOME": "protobuf",
            "XXHASH_HOME": "xxhash",
            "PCRE2_HOME": "pcre2",
            "UTF8PROC_HOME": "utf8proc",
            "ARROW_HOME": "arrow",
        }
        if spec.satisfies("+cuda"):
            places.update({"CUDA_HOME": "cuda", "CUDNN_HOME": "cudnn", "NCCL_HOME": "nccl"})
        variables = [f"{name}={spec[package].prefix}" for name, package in places.items()]
        if spec.satisfies("+cuda"):
            variables.append("CUDNN_FRONTEND_HOME=" + os.path.join(self.stage.source_path, "cudnn-frontend"))
            variables.append("CUDA_ARCH=" + " ".join(spec.variants["cuda_arch"].value))
        else:
            variables.append("CUDA=0")
        return variables

    @property
    def build_targets(self):
        return [*self.variables, "build/lockstep"]

    @property
    def install_targets(self):
        return [*self.variables, f"PREFIX={self.prefix}", "install"]
