# Lockstep. `make help` lists the targets and variables; the rules for launching, testing and checking come last.
VERSION := 0.1.0

MODE    ?= release
BUILD   ?= $(if $(filter release,$(MODE)),build,build-$(MODE))
# OUT contains what is linked: the program, the tests, and the objects of CUDA kernels. Everything else is in BUILD,
# which the program for all architectures and the tests share. It is defined here because the rule for `all` below
# expands it immediately.
OUT     ?= $(BUILD)
JOBS    ?= $(shell nproc 2>/dev/null || echo 1)
PREFIX  ?= /usr/local
DESTDIR ?=
CONFIG  ?= jobs/configs/quickstart.yaml
RANKS   ?= $(or $(call given,NUM_GPUS),$(DEFAULT_RANKS))
DEFAULT_RANKS = 2
# $(call given,NAME): the variable if it is given on make's command line, as NUM_GPUS=2, and not by the environment
given    = $(if $(findstring command,$(origin $(1))),$($(1)))
$(if $(call given,NUM_GPU),$(error NUM_GPU has no meaning: NUM_GPUS=$(NUM_GPU) starts one rank on each of so many GPUs))
OVERRIDES ?=

# Goals that are given together with `deps` are made after it, one by one, since Make looks for libraries when it
# starts.
ifneq (,$(and $(filter deps deps-test,$(MAKECMDGOALS)),$(word 2,$(MAKECMDGOALS))))
.PHONY: $(MAKECMDGOALS) one-by-one
$(MAKECMDGOALS): one-by-one ; @:
one-by-one: ; @set -e; for goal in $(MAKECMDGOALS); do $(MAKE) --no-print-directory $$goal; done
else

all: $(OUT)/lockstep lockstep-arrow compile_commands.json

# Make's built-in rules would compile the objects of another build with the flags of this one.
MAKEFLAGS += --no-builtin-rules

# ---- Paths of libraries: NAME_HOME (or DNNL_ROOT) if set, else pkg-config, else the compiler's own paths -------------
# $(call headers,HOME,package) and $(call libraries,HOME,package,flags when there is no package)
headers   = $(if $(1),-isystem $(1)/include,$(shell pkg-config --cflags $(2) 2>/dev/null))
libraries = $(if $(1),$(foreach d,lib lib64,-L$(1)/$(d) -Wl$(comma)-rpath$(comma)$(1)/$(d)) $(3),$(or $(shell pkg-config --libs $(2) 2>/dev/null),$(3)))
comma := ,
space := $() $()

CXX      := $(if $(filter default,$(origin CXX)),$(if $(filter fuzz,$(MODE)),clang++,g++),$(CXX))
MPICXX   ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/)mpicxx
MPIRUN   ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/)mpirun
$(if $(findstring n,$(firstword -$(MAKEFLAGS))),,$(if $(filter install,$(MAKECMDGOALS)),$(if $(shell command -v $(MPICXX) 2>/dev/null),,$(error there is no $(MPICXX): `make deps` installs what Lockstep needs, `make install` Lockstep itself))))
PROTOC   ?= $(if $(PROTOBUF_HOME),$(PROTOBUF_HOME)/bin/)protoc
# oneDNN is used on x86-64, and elsewhere if DNNL_ROOT or pkg-config names one; DNNL=0 leaves it out, and Lockstep's own
# kernels take its place. The oneDNN that scripts/deps.sh unpacked is used unless there is another one (3.2 or newer).
has_dnnl_package := $(shell pkg-config --atleast-version=3.2 dnnl 2>/dev/null && echo 1)
IS_X86_64   := $(filter x86_64%,$(shell $(CXX) -dumpmachine))
HAS_DNNL    := $(if $(filter 0,$(DNNL)),,$(or $(IS_X86_64),$(DNNL_ROOT),$(has_dnnl_package)))
ONEDNN_HOME := $(if $(HAS_DNNL),$(or $(DNNL_ROOT),$(if $(has_dnnl_package),,$(CURDIR)/.deps/onednn)))
DNNL_CFLAGS := $(if $(HAS_DNNL),-DLOCKSTEP_DNNL $(call headers,$(ONEDNN_HOME),dnnl))
DNNL_LIBS   := $(if $(HAS_DNNL),$(call libraries,$(ONEDNN_HOME),dnnl,-ldnnl))

# Parquet and Arrow files are read by a program of its own, the only one that is linked with Arrow (21 or newer):
# ARROW_HOME, or pkg-config, or what scripts/deps.sh unpacked. Without Arrow, the program is left out.
has_arrow_package := $(shell pkg-config --atleast-version=21 arrow parquet 2>/dev/null && echo 1)
ARROW_HOME  ?= $(if $(has_arrow_package),,$(if $(IS_X86_64),$(wildcard $(CURDIR)/.deps/arrow)))
HAS_ARROW   := $(if $(filter 0,$(ARROW)),,$(or $(ARROW_HOME),$(has_arrow_package)))
ARROW_PROGRAM := $(if $(HAS_ARROW),$(OUT)/lockstep-arrow)
ARROW_LIBS  := -Wl,-rpath,'$$ORIGIN' $(call libraries,$(ARROW_HOME),parquet arrow,-lparquet -larrow)

mpi_show    := $(shell $(MPICXX) -show 2>/dev/null)
MPI_CFLAGS  := $(patsubst -I%,-isystem %,$(filter -I%,$(mpi_show))) -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
MPI_LIBS    := $(or $(filter-out -lmpi_cxx -lmpicxx -lmpichcxx,$(filter -L% -l% -Wl%,$(mpi_show))),-lmpi)
HDF5_CFLAGS := $(patsubst -I%,-isystem %,$(call headers,$(HDF5_HOME),hdf5))

# CUDA is built if nvcc is on PATH or CUDA_HOME names its folder; CUDA=0 leaves it out. The runtime is linked
# statically, and the libraries are loaded when a device is used, so that the program starts equally fast without a
# device.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null))
HAS_CUDA  := $(if $(filter 0,$(CUDA)),,$(if $(CUDA_HOME),1))
# Under nvcc, fmt omits `constexpr`, which C++20 then requires: hence FMT_USE_CONSTEXPR.
ifdef HAS_CUDA
NVCC         ?= $(CUDA_HOME)/bin/nvcc
CUDNN_FRONTEND_HOME ?= $(CURDIR)/.deps/cudnn-frontend
CUDA_CFLAGS  := -DLOCKSTEP_CUDA -isystem $(CUDA_HOME)/include -isystem $(CUDNN_FRONTEND_HOME)/include $(call headers,$(CUDNN_HOME)) $(call headers,$(NCCL_HOME)) $(if $(NCCL_HOME),-DLOCKSTEP_NCCL_HOME=$(NCCL_HOME))
cuda_folders := $(realpath $(wildcard $(CUDNN_HOME:=/lib64) $(CUDNN_HOME:=/lib) $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
CUDA_LIBS    := $(foreach d,$(cuda_folders),-L$(d) -Wl$(comma)-rpath$(comma)$(d)) -lcudart_static
cuda_known   := $(patsubst compute_%,%,$(filter compute_%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)))
CUDA_ARCH    ?= $(filter 70 75 80 90 100,$(cuda_known))
$(if $(shell command -v $(NVCC) 2>/dev/null),,$(error there is no compiler $(NVCC): CUDA_HOME names the CUDA toolkit, CUDA=0 builds without))
cuda_unknown := $(if $(cuda_known),$(filter-out $(cuda_known),$(CUDA_ARCH)))
$(if $(cuda_unknown),$(error CUDA_ARCH=$(CUDA_ARCH): $(NVCC) knows $(cuda_known), as in CUDA_ARCH="80 90"))
NVCC_FLAGS   := -std=c++20 --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) \
  $(foreach a,$(lastword $(sort $(filter-out 100,$(CUDA_ARCH))) $(filter 100,$(CUDA_ARCH))),-gencode arch=compute_$(a),code=compute_$(a))
endif

CPPFLAGS := $(CPPFLAGS) -Iinclude -Isrc -I. -I$(BUILD)/generated -MMD -MP $(MPI_CFLAGS) $(HDF5_CFLAGS) \
  $(call headers,$(CLI11_HOME),CLI11) $(call headers,$(YAML_CPP_HOME),yaml-cpp) \
  $(call headers,$(JSON_HOME),nlohmann_json) $(call headers,$(FMT_HOME),fmt) \
  $(call headers,$(SPDLOG_HOME),spdlog) $(if $(SPDLOG_HOME),-DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL) \
  $(call headers,$(JPEG_HOME),libjpeg) $(call headers,$(PROTOBUF_HOME),protobuf) $(call headers,$(XXHASH_HOME),libxxhash) \
  $(call headers,$(PCRE2_HOME),libpcre2-8) $(call headers,$(UTF8PROC_HOME),libutf8proc)
LDLIBS := $(LDLIBS) $(CUDA_LIBS) -Wl,--as-needed $(DNNL_LIBS) $(call libraries,$(HDF5_HOME),hdf5,-lhdf5) $(MPI_LIBS) \
  $(call libraries,$(YAML_CPP_HOME),yaml-cpp,-lyaml-cpp) $(call libraries,$(SPDLOG_HOME),spdlog,-lspdlog) \
  $(call libraries,$(FMT_HOME),fmt,-lfmt) $(call libraries,$(JPEG_HOME),libjpeg,-ljpeg) $(call libraries,$(PNG_HOME),libpng,-lpng) \
  $(call libraries,$(PROTOBUF_HOME),protobuf,-lprotobuf) $(call libraries,$(XXHASH_HOME),libxxhash,-lxxhash) \
  $(call libraries,$(PCRE2_HOME),libpcre2-8,-lpcre2-8) $(call libraries,$(UTF8PROC_HOME),libutf8proc,-lutf8proc) -lpthread -ldl -lrt
GTEST_CFLAGS := $(call headers,$(GTEST_HOME),gtest)
GTEST_LIBS   := $(call libraries,$(GTEST_HOME),gtest_main,-lgtest_main -lgtest)
BENCHMARK_CFLAGS := $(call headers,$(BENCHMARK_HOME),benchmark)
BENCHMARK_LIBS   := $(call libraries,$(BENCHMARK_HOME),benchmark,-lbenchmark)

# The kernels of tests are compiled for one architecture only. TEST_OUT is the OUT of tests.
TEST_CUDA_ARCH ?= $(or $(filter 90,$(CUDA_ARCH)),$(lastword $(CUDA_ARCH)))
ifeq ($(TEST_CUDA_ARCH),all)
override TEST_CUDA_ARCH := $(CUDA_ARCH)
endif
TEST_OUT       := $(if $(filter-out $(TEST_CUDA_ARCH),$(CUDA_ARCH)),$(BUILD)/sm_$(subst $(space),_,$(strip $(TEST_CUDA_ARCH))),$(BUILD))

# ---- Compiler flags -------------------------------------------------------------------------------------------------
# Plain x86-64: the binary runs anywhere, and kernels choose their instruction set at run time. Outside of kernels a*b+c
# is always rounded twice, so that results do not depend on which operations the compiler fuses.
MODES := release debug asan ubsan asan-ubsan tsan fuzz
$(if $(filter $(MODE),$(MODES)),,$(error MODE=$(MODE): one of $(MODES)))
OPT_release    := -O2 -g1
OPT_debug      := -O0 -g -D_GLIBCXX_ASSERTIONS
OPT_asan       := -O1 -g1 -fno-omit-frame-pointer -fsanitize=address
OPT_ubsan      := -O1 -g1 -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=undefined
# The address sanitizer catches null pointers too, and checking each access again takes a fifth of the compile time.
OPT_asan-ubsan := $(OPT_asan) -fsanitize=undefined -fno-sanitize=null -fno-sanitize-recover=undefined
OPT_tsan       := -O1 -g1 -fno-omit-frame-pointer -fsanitize=thread
OPT_fuzz       := $(OPT_asan) -fsanitize=undefined,fuzzer-no-link -fno-sanitize-recover=undefined -DLOCKSTEP_FUZZ \
  -include scripts/source_location_for_clang.h
# Code that only tests contain takes the longest to compile: -O1 without debugging information saves a third of that time,
# and -O0, used with the sanitizers, half.
TEST_OPT       := $(if $(filter release,$(MODE)),-O1 -g0,$(if $(filter asan-ubsan,$(MODE)),-O0))
# So does -O1 for the code around a step, which has no loops over values. Under the sanitizers, unit tests spend little time
# in it and in what reads and writes models.
AROUND_OPT     := $(if $(filter release,$(MODE)),-O1,$(if $(filter asan-ubsan,$(MODE)),-O0))
AROUND         := $(patsubst %,src/%/%,commands config scaling page mlflow doctor tasks models run train $(if $(filter asan-ubsan,$(MODE)),checkpoint inference))
KERNEL_OPT     := $(if $(filter release,$(MODE)),-O3) -fno-math-errno -fno-trapping-math
# The sanitizers' instrumentation confuses GCC's own analysis, so its warnings are used only in the other modes.
WARNINGS ?= $(if $(filter release debug,$(MODE)),-Wall -Wextra -Werror,-w)
# SYSROOT: the folder with the libraries of the target machine, for cross compilers.
sysroot  := $(SYSROOT:%=--sysroot=%)
CXXFLAGS := -std=c++20 $(sysroot) $(if $(filter-out fuzz,$(MODE)),-fopenmp) $(OPT_$(MODE)) $(WARNINGS) $(CXXFLAGS)
# $(call flags_for,FILE)
flags_for = $(CPPFLAGS) $(CXXFLAGS) $(if $(filter test/%,$(filter-out test/reference/% test/support/%.cpp,$(1))),$(TEST_OPT)) $(if $(filter $(AROUND),$(1)),$(AROUND_OPT)) $(if $(filter kernels/cuda/% src/comm/nccl% src/comm/world.cpp src/backend_factory.cpp test/%,$(1)),$(CUDA_CFLAGS)) $(if $(filter kernels/cpu/% test/%,$(1)),$(DNNL_CFLAGS)) $(if $(filter kernels/%,$(1)),$(KERNEL_OPT),-ffp-contract=off) $(if $(filter src/comm/%,$(1)),$(if $(filter release,$(MODE)),-O3)) \
  $(if $(filter src/data/png.cpp test/data/% test/fuzz/%,$(1)),$(call headers,$(PNG_HOME),libpng)) $(if $(filter test/%,$(1)),$(GTEST_CFLAGS)) $(if $(filter bench/%,$(1)),$(BENCHMARK_CFLAGS))

# A third of the time of compiling tests goes into headers that most of them include, so GCC reads these headers
# precompiled. PRECOMPILED=0 turns that off. $(call precompiled_for,FILE): the header, without the suffix .gch.
PRECOMPILED ?= $(if $(filter fuzz,$(MODE)),0,1)
precompiled_for = $(if $(filter 0,$(PRECOMPILED)),,$(if $(filter test/%,$(filter-out test/reference/% test/support/%.cpp,$(1))),$(BUILD)/test/support/precompiled.h))

# ---- Sources and programs -------------------------------------------------------------------------------------------
PROTOS    := $(shell find src -name '*.proto')
GENERATED := $(PROTOS:src/%.proto=$(BUILD)/generated/%.pb.cc)
EMBEDDED  := $(patsubst %,$(BUILD)/generated/commands/completion.%.inc,bash zsh)
SOURCES   := $(filter-out src/main.cpp src/arrow/% $(if $(HAS_CUDA),,src/comm/nccl%) $(if $(HAS_DNNL),,%onednn.cpp),$(shell find src kernels/cpu $(if $(HAS_CUDA),kernels/cuda) -name '*.cpp' | sort))
# The commands are mostly tested by scripts, so a build of unit tests leaves out the commands that have no unit test.
SOURCES   := $(if $(UNIT_TESTS_ONLY),$(filter-out $(filter-out $(patsubst test/%_test.cpp,src/%.cpp,$(wildcard test/commands/*_test.cpp)),$(wildcard src/commands/*.cpp)),$(SOURCES)),$(SOURCES))
CUDA_SOURCES := $(if $(HAS_CUDA),$(shell find kernels/cuda -name '*.cu' | sort))
# The CUDA backend's ops compiled for the host (test/support/cuda_on_host), in a namespace of their own: the kernels,
# and all other files except those that need a device (the backend, and the calls of cuDNN and cuBLASLt).
ON_HOST   := $(if $(HAS_CUDA),$(filter-out kernels/cuda/backend.% kernels/cuda/backend_gpu% kernels/cuda/backend_planning% %_cudnn.cpp %_cublaslt.cpp,$(wildcard kernels/cuda/*.cpp)) $(wildcard test/support/cuda_on_host/*.cpp))
SUPPORT   := $(filter-out %_test.cpp test/support/program.cpp test/support/cuda_on_host/%,$(shell find test/reference test/support -name '*.cpp' 2>/dev/null | sort))
# Tests of code that is built only with CUDA, and fake libraries that replace the real ones without a GPU.
CUDA_TESTS := test/comm/nccl% test/kernels/cuda_% test/kernels/nvml% test/kernels/nvtx%
FAKES     := $(if $(HAS_CUDA),$(OUT)/test/comm/fake_nccl.so $(OUT)/test/kernels/fake_nvml.so $(OUT)/test/kernels/fake_nvtx.so \
  $(OUT)/test/kernels/fake_cudnn.so $(OUT)/test/kernels/hidden_library.so) \
  $(OUT)/test/faults/fault_injection.so $(OUT)/test/doctor/preload.so
# Tests of instructions that only x86-64 has are left out elsewhere.
TESTS     := $(filter-out $(if $(HAS_CUDA),,$(CUDA_TESTS)) $(if $(IS_X86_64),,test/kernels/emulated_amx% test/kernels/max_isa%),$(shell find test -name '*_test.cpp' | sort))
# Unit tests that run in one process: the only tests in a build for the sanitizers (UNIT_TESTS_ONLY=1).
UNIT_TESTS := $(if $(TESTS),$(shell grep -LE '^// (ranks:|sanitizers: no)' $(TESTS)))
LISTED    := $(if $(UNIT_TESTS_ONLY),$(UNIT_TESTS),$(TESTS))
TESTED    := $(TESTS) test/comm/collective_tests.cpp
# Ops with kernels for AMX, compiled with emulated tiles (test/support/emulated_amx.h) for one program, which contains the
# tests of these ops too.
EMULATED_AMX       := kernels/cpu/attention.cpp kernels/cpu/conv2d_amx.cpp
EMULATED_AMX_TESTS := $(filter test/kernels/algorithms_test.cpp test/kernels/attention_test.cpp test/kernels/conv2d_test.cpp,$(TESTED))
SCRIPTS   := $(shell find test -name '*_test.sh' -o -name '*_test.py' | sort)
BENCHES   := $(shell find bench -name '*.cpp' | sort)
# Tests that need a program of their own.
OWN_PROGRAM := $(if $(LISTED),$(shell grep -lE '^// program: own' $(LISTED)))
# A build for the sanitizers takes the tests, and the CUDA backend, which never runs there, from the release build:
# RELEASE and RELEASE_OUT.
RELEASE     ?= $(BUILD)
RELEASE_OUT ?= $(OUT)
# TOGETHER=1 compiles the sources of a folder together, up to 12 at a time (scripts/units.py), so that the headers they
# share are read once: a full build takes half as long, but rebuilding after a change of one source takes longer. CUDA
# kernels are compiled up to 3 at a time. Processor-specific kernels and the sources in ALONE have flags of their own.
TOGETHER  ?= $(if $(filter fuzz,$(MODE)),0,$(if $(shell command -v python3 2>/dev/null),1,0))
ALONE     := src/main.cpp src/base/version.cpp src/graph/normal_fill.cpp src/comm/nccl% src/comm/world.cpp src/backend_factory.cpp \
  src/data/png.cpp test/support/%_test.cpp test/support/sanitizers.cpp test/support/heap_count.cpp $(OWN_PROGRAM) $(EMULATED_AMX_TESTS)
# Tests are compiled once: a build for the sanitizers links the test objects of the release build with a sanitized
# library.
TEST_BUILD := $(if $(UNIT_TESTS_ONLY),$(RELEASE),$(BUILD))
# $(call objects_of,BUILD,SOURCES): the objects except those of kernels; CUDA kernels compiled together are included.
grouped    = $(if $(filter 1,$(TOGETHER)),$(filter-out kernels/cpu/% kernels/cuda/%.cpp $(ALONE),$(1)))
units      = $(if $(2),$(shell scripts/units.py $(1) $(2))$(if $(filter-out 0,$(.SHELLSTATUS)),$(error scripts/units.py failed; TOGETHER=0 builds without it)))
objects_of = $(call units,$(1),$(call grouped,$(2))) $(patsubst %.cpp,$(1)/%.o,$(filter-out kernels/% $(call grouped,$(2)),$(2)))
UNITS      := $(call objects_of,$(BUILD),$(SOURCES) $(SUPPORT) $(CUDA_SOURCES))
TEST_UNITS := $(call objects_of,$(TEST_BUILD),$(filter-out $(OWN_PROGRAM),$(TESTED)))
# The objects of CUDA kernels: in OUT, and in BUILD/on-host if they are compiled for the host.
CUDA_UNITS := $(if $(filter 1,$(TOGETHER)),$(patsubst $(BUILD)/%,%,$(filter %.cu.o,$(UNITS))),$(CUDA_SOURCES:%=%.o))
ON_HOST_OBJECTS := $(addprefix $(BUILD)/on-host/,$(CUDA_UNITS) $(ON_HOST:%=%.o))
# $(call units_of,FOLDER/): the objects of its sources
units_of   = $(filter $(BUILD)/$(1)% $(BUILD)/units/$(1)%,$(UNITS))
OBJECTS   := $(patsubst %.cpp,$(BUILD)/%.o,$(filter kernels/cpu/%,$(SOURCES))) $(call units_of,src/) $(GENERATED:.cc=.o) \
  $(patsubst %.cpp,$(RELEASE)/%.o,$(filter kernels/cuda/%,$(SOURCES))) $(CUDA_UNITS:%=$(RELEASE_OUT)/%)
FUZZED    := $(filter src/base/% src/config/% src/hdf5/% src/data/% src/checkpoint/% src/text/% kernels/cpu/base/resize_rows.cpp src/models/resnet_table.cpp src/models/llama_config.cpp src/models/llama_tensors.cpp,$(SOURCES))
FUZZERS   := $(patsubst test/fuzz/%_test.cpp,$(BUILD)/fuzz/%,$(filter test/fuzz/%,$(TESTS)))
# One program per folder of tests, OUT/test/FOLDER_test, and one per source that cannot share it,
# OUT/test/FOLDER/NAME_test.
TEST_PROGRAMS  := $(patsubst test/%/,$(OUT)/test/%_test,$(sort $(dir $(filter-out $(OWN_PROGRAM),$(LISTED)))))
OWN_PROGRAMS   := $(OWN_PROGRAM:%.cpp=$(OUT)/%)
BENCH_PROGRAMS := $(BENCHES:%.cpp=$(OUT)/%)

# ---- Rules ----------------------------------------------------------------------------------------------------------
$(OUT)/lockstep: $(BUILD)/src/main.o $(OUT)/liblockstep.a
	$(link)
lockstep-arrow: $(ARROW_PROGRAM)
$(OUT)/lockstep-arrow: src/arrow/main.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  compile  $<"
	@$(CXX) -std=c++20 -O2 $(sysroot) $(WARNINGS) $(call headers,$(ARROW_HOME),arrow parquet) -o $@ $< $(LDFLAGS) $(ARROW_LIBS)
$(OWN_PROGRAMS): $(OUT)/%: $(BUILD)/%.o $(BUILD)/test/support/program.o $(BUILD)/libtest-support.a $(OUT)/liblockstep.a
	$(link) $(GTEST_LIBS)
$(OUT)/test/kernels/emulated_amx_test: $(EMULATED_AMX:%.cpp=$(BUILD)/emulated-amx/%.o) $(EMULATED_AMX_TESTS:%.cpp=$(TEST_BUILD)/%.o)
support_objects := $(call units_of,test/reference/) $(call units_of,test/support/)
objects_of_tests = $(filter $(TEST_BUILD)/test/$(1)/% $(TEST_BUILD)/units/test/$(1)/%,$(TEST_UNITS))
.SECONDEXPANSION:
$(TEST_PROGRAMS): $(OUT)/test/%_test: $$(call objects_of_tests,$$*) $(BUILD)/test/support/program.o $(BUILD)/libtest-support.a $(OUT)/liblockstep.a
	$(link) $(GTEST_LIBS)
# In a build for the sanitizers the library comes first: if several objects define the same inline function, the linker
# keeps the first definition, and the definitions in the objects of tests are not sanitized.
$(TEST_PROGRAMS): private LIBRARY_FIRST = $(if $(UNIT_TESTS_ONLY),-Wl$(comma)--whole-archive $(filter %.a,$^) -Wl$(comma)--no-whole-archive)
# The list of all tests with their settings, for scripts/run-tests.sh and others.
$(OUT)/test/list: $(LISTED) $(SCRIPTS) scripts/list-tests.sh
	@mkdir -p $(@D)
	@scripts/list-tests.sh $(LISTED) $(SCRIPTS) > $@
$(BENCH_PROGRAMS): $(OUT)/bench/%: $(BUILD)/bench/%.o $(OUT)/liblockstep.a
	$(link) $(BENCHMARK_LIBS)
# Prints cuDNN's plans for a GPU that is not in this machine (test/cuda/plans_test.sh).
PLANS := $(if $(HAS_CUDA),$(OUT)/test/cuda/plans)
$(PLANS): $(BUILD)/test/cuda/plans.o $(OUT)/liblockstep.a
	$(link)
# libFuzzer provides main(). Only the readers are linked, and not what needs OpenMP.
$(FUZZERS): $(BUILD)/fuzz/%: $(BUILD)/test/fuzz/%_test.o $(FUZZED:%.cpp=$(BUILD)/%.o)
	@mkdir -p $(@D)
	@echo "  link     $@"
	@$(CXX) $(CXXFLAGS) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(LDFLAGS) $(LDLIBS)
# Wrappers that tests preload, and fake libraries that replace real ones.
$(OUT)/test/%.so: test/%.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  link     $@"
	@$(CXX) -std=c++20 -O2 $(sysroot) $(WARNINGS) $(CPPFLAGS) $(CUDA_CFLAGS) $(DNNL_CFLAGS) -fPIC -shared $(SO_FLAGS) -o $@ $< -ldl -lpthread
# The names of the real libraries, so that these are loaded instead of them.
$(OUT)/test/kernels/fake_nvml.so: SO_FLAGS = -Wl,-soname,libnvidia-ml.so.1
$(OUT)/test/kernels/fake_cudnn.so: SO_FLAGS = -Wl,-soname,libcudnn.so.9
# The order of linking: the program, the libraries that it uses, and the libraries that those use.
define link
@mkdir -p $(@D)
@echo "  link     $@"
@$(CXX) $(CXXFLAGS) -o $@ $(LIBRARY_FIRST) $(filter %.o,$^) $(filter %.a,$^) $(LDFLAGS) $(LDLIBS)
endef

# Thin archives: they contain the names of the objects instead of copies.
$(OUT)/liblockstep.a: $(OBJECTS)
$(BUILD)/libtest-support.a: $(support_objects) $(ON_HOST_OBJECTS)
$(BUILD)/%.a:
	@mkdir -p $(@D)
	@rm -f $@ && $(AR) qcsT $@ $(filter %.o,$^)

$(BUILD)/%.o: %.cpp $(BUILD)/flags $$(addsuffix .gch,$$(call precompiled_for,$$*.cpp)) | $(GENERATED) $(EMBEDDED)
	@mkdir -p $(@D)
	@echo "  compile  $<"
	@$(CXX) $(addprefix -include ,$(call precompiled_for,$<)) $(call flags_for,$<) $(DEFINES) -c -o $@ $<
# GCC warns about members whose types are local to one source, which is a useful warning only for headers.
$(BUILD)/units/%.o: $(BUILD)/units/%.cpp $(BUILD)/flags $$(addsuffix .gch,$$(call precompiled_for,$$*.cpp)) | $(GENERATED) $(EMBEDDED)
	@echo "  compile  $(shell grep -c "\.cpp" $<) sources of $(dir $*)"
	@$(CXX) $(addprefix -include ,$(call precompiled_for,$*.cpp)) $(call flags_for,$*.cpp) -Wno-subobject-linkage -c -o $@ $<
# The copy is for tests with other flags, for which GCC rejects the precompiled header.
$(BUILD)/%.h.gch: %.h $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  compile  $<"
	@cp $< $(@:.gch=) && $(CXX) $(call flags_for,$<) -w -x c++-header -c -o $@ $(@:.gch=)
# Registers, spills and shared memory of each kernel go into FILE.resources, which a test reads.
$(OUT)/%.cu.o: %.cu $(OUT)/cuda-flags
	@echo "  compile  $<"
	$(compile_kernels)
$(OUT)/units/%.cu.o: $(BUILD)/units/%.cu $(OUT)/cuda-flags
	@echo "  compile  $(shell grep -c "\.cu" $<) sources of $(dir $*)"
	$(compile_kernels)
define compile_kernels
@mkdir -p $(@D)
@$(NVCC) -ccbin $(CXX) $(NVCC_FLAGS) $(if $(filter -Werror,$(WARNINGS)),-Werror all-warnings -Wno-deprecated-gpu-targets) -O3 -Xcompiler "$(filter-out -std=%,$(CXXFLAGS)) -Wno-subobject-linkage" -Xptxas -v $(CUDA_CFLAGS) $(filter-out -MMD -MP,$(CPPFLAGS)) \
  -MMD -MP -MF $(@:.o=.d) -c -o $@ $< 2> $(@:.o=.resources) || { cat $(@:.o=.resources); exit 1; }
endef
# Each thread of a kernel has a stack of its own. Detecting use after return would need a second one per thread, and
# setting that up takes longer than the kernel.
$(BUILD)/on-host/%.o: FIBER_FLAGS := $(if $(findstring asan,$(MODE)),--param asan-use-after-return=0)
$(BUILD)/on-host/%.o: % $(BUILD)/flags
	@echo "  compile  $< for the host"
	$(compile_for_host)
$(BUILD)/on-host/units/%.cu.o: $(BUILD)/units/%.cu $(BUILD)/flags
	@echo "  compile  $(shell grep -c "\.cu" $<) sources of $(dir $*) for the host"
	$(compile_for_host)
define compile_for_host
@mkdir -p $(@D)
@$(CXX) -Dcuda=cuda_on_host -include test/support/cuda_on_host/runtime.h $(CUDA_CFLAGS) $(CPPFLAGS) $(CXXFLAGS) $(FIBER_FLAGS) -Wno-unknown-pragmas -Wno-subobject-linkage -ffp-contract=off -x c++ -c -o $@ $<
endef
$(BUILD)/emulated-amx/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  compile  $< for emulated AMX"
	@$(CXX) -include test/support/emulated_amx.h $(call flags_for,$<) -c -o $@ $<
$(BUILD)/generated/%.pb.o: $(BUILD)/generated/%.pb.cc $(BUILD)/flags
	@$(CXX) $(CPPFLAGS) $(CXXFLAGS) -w -c -o $@ $<
# The script that `lockstep completion SHELL` prints, as a C++ string.
$(EMBEDDED): $(BUILD)/generated/commands/completion.%.inc: src/commands/completion.%
	@mkdir -p $(@D) && { printf 'R"bash('; cat $<; printf ')bash"\n'; } > $@
$(BUILD)/generated/%.pb.cc: src/%.proto
	@mkdir -p $(BUILD)/generated
	$(PROTOC) -Isrc --cpp_out=$(BUILD)/generated $<

# Files that change only if their content changes, so that a new commit recompiles one file, and new flags recompile all
# of them.
$(BUILD)/flags: export CONTENT = $(CXX) $(CPPFLAGS) $(CXXFLAGS) $(KERNEL_OPT) $(TEST_OPT)$(AROUND_OPT:%= %) $(CUDA_CFLAGS) $(DNNL_CFLAGS)
$(OUT)/cuda-flags: export CONTENT = $(CXX) $(CPPFLAGS) $(CXXFLAGS) $(CUDA_CFLAGS) $(NVCC_FLAGS)
$(BUILD)/commit: export CONTENT = $(VERSION) $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(BUILD)/flags $(BUILD)/commit $(if $(HAS_CUDA),$(OUT)/cuda-flags): always
	@mkdir -p $(@D); printf '%s\n' "$$CONTENT" | cmp -s - $@ || printf '%s\n' "$$CONTENT" > $@
$(BUILD)/src/base/version.o: $(BUILD)/commit
$(BUILD)/src/base/version.o: DEFINES = -DLOCKSTEP_VERSION='"$(VERSION)"' -DLOCKSTEP_COMMIT='"$(word 2,$(shell cat $(BUILD)/commit))"' \
  -DLOCKSTEP_COMPILER='"$(shell $(CXX) --version | head -1)"' \
  -DLOCKSTEP_YAML_CPP='"$(or $(shell pkg-config --modversion yaml-cpp 2>/dev/null),unknown)"'

# The templates of cudnn-frontend compile twice as fast with -O1, and none of their code is in a step's inner loops.
$(BUILD)/kernels/cuda/conv2d_cudnn.o $(BUILD)/kernels/cuda/attention_cudnn.o: private KERNEL_OPT = -O1

# As the kernels on devices, so that the update has the same bits on either side (train.offload).
$(BUILD)/kernels/cpu/optimizer.o: private KERNEL_OPT += -ffp-contract=off

# The loops of this file are only vectorised with these options. Sums and products are not fused (-ffp-contract=off), so
# that every machine gets the same bits.
$(BUILD)/src/graph/normal_fill.o: DEFINES = $(KERNEL_OPT)

# Written by Make itself, since the list is too long for the command line of a shell.
compile_commands.json: always
	$(shell mkdir -p $(BUILD))$(file >$(BUILD)/$@.new,[)$(foreach f,src/main.cpp $(SOURCES) $(SUPPORT) $(TESTS) test/support/program.cpp $(BENCHES),$(file \
	  >>$(BUILD)/$@.new,$(if $(filter-out src/main.cpp,$f),$(comma)){"directory": "$(CURDIR)"$(comma) "file": "$f"$(comma) "command": \
	  "$(subst ",\",$(CXX) $(call flags_for,$f) -c -o $(BUILD)/$(f:.cpp=.o) $f)"}))$(file >>$(BUILD)/$@.new,])
	@if cmp -s $(BUILD)/$@.new $@; then rm $(BUILD)/$@.new; else mv $(BUILD)/$@.new $@; fi

-include $(CUDA_UNITS:%.o=$(OUT)/%.d) $(ON_HOST_OBJECTS:.o=.d) $(EMULATED_AMX:%.cpp=$(BUILD)/emulated-amx/%.d) $(if $(PLANS),$(BUILD)/test/cuda/plans.d)
-include $(patsubst %.o,%.d,$(filter-out %.cu.o,$(filter $(BUILD)/units/%,$(UNITS) $(TEST_UNITS))))
-include $(patsubst %.cpp,$(BUILD)/%.d,src/main.cpp $(SOURCES) $(SUPPORT) $(TESTED) test/support/program.cpp $(BENCHES)) $(GENERATED:.cc=.d)

# Built in TEST_OUT by a separate Make, which writes to BUILD too. With `make -j all tests`, it must therefore not start
# before the other goals are built.
tests test tests-sanitized test-sanitized test-long test-mutations: | $(filter all benches fuzzers $(OUT)/%,$(MAKECMDGOALS))
tests:
	@$(MAKE) --no-print-directory OUT=$(TEST_OUT) CUDA_ARCH="$(TEST_CUDA_ARCH)" tests-here
# With ONLY=PATTERN, the programs of the tests whose name matches, and those that are named in the scripts among them.
chosen := $(if $(ONLY),$(shell scripts/list-tests.sh | ONLY='$(ONLY)' awk -F'\t' '$$1 ~ ENVIRON["ONLY"] {print $$2 == "-" ? $$10 : $$2}' | sort -u))
chosen_scripts := $(filter test/%,$(chosen))
chosen += $(if $(chosen_scripts),$(shell grep -ohwE '[a-z]+_test' $(chosen_scripts) | sort -u))
runs_scripts := $(if $(ONLY),$(chosen_scripts),yes)
chosen_of = $(if $(ONLY),$(filter $(chosen:%=$(OUT)/test/%),$(1)),$(1))
tests-here: $(call chosen_of,$(TEST_PROGRAMS) $(OWN_PROGRAMS)) $(FAKES) $(OUT)/test/list lockstep-arrow \
  $(if $(UNIT_TESTS_ONLY),,$(if $(runs_scripts),$(OUT)/lockstep $(PLANS)))
test-objects: $(TEST_UNITS)
cuda-objects: $(filter $(RELEASE)/kernels/cuda/% $(RELEASE_OUT)/kernels/cuda/% $(RELEASE_OUT)/units/kernels/cuda/%,$(OBJECTS))
nccl-objects: $(patsubst %.cpp,$(BUILD)/%.o,$(filter src/comm/nccl%,$(SOURCES)))
benches: $(BENCH_PROGRAMS)
fuzzers: $(FUZZERS)

include scripts/targets.mk

.PHONY: all lockstep-arrow tests tests-here test-objects cuda-objects nccl-objects benches fuzzers always
.DELETE_ON_ERROR:
# Only these are kept as intermediate files. Without a list, Make would not compile a new source that is older than the
# library.
.SECONDARY: $(GENERATED) $(BUILD)/test/support/precompiled.h.gch
endif
