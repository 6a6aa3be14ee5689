# Launching, testing, checking, installing. Included by the Makefile.

# Allows Open MPI to run as root. On a laptop, ranks may share cores, and the threads of a rank need more than one core.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif
LAUNCH := $(MPIRUN) --oversubscribe --bind-to none
export MPIRUN

# TRAIN_BATCH_SIZE=1, MODEL_MAX_SEQ_LEN=1024 and so on: lockstep translates them, and refuses those that it does not know.
VARIABLES = $(foreach v,$(sort $(filter TRAIN_% MODEL_% TUNING_%,$(.VARIABLES))),$(if $(call given,$(v)),'$(v)=$($(v))'))
SETTINGS = $(CONFIG) $(SHARD) $(VARIABLES) $(OVERRIDES) $(addprefix --deepspeed ,$(call given,DEEPSPEED_CONFIG))
train: $(BUILD)/lockstep
	scripts/launch $(LAUNCH) -n $(RANKS) $(BUILD)/lockstep train $(SETTINGS)

# ---- What users of Accelerate and DeepSpeed type (docs/coming-from.md) ------------------------------------------------
N_GPUS = $(shell $(BUILD)/lockstep gpu-info 2>/dev/null | sed -n 's/^Number of GPUs: //p')
RUNS = "$$($(BUILD)/lockstep train $(SETTINGS) --print-config=run.directory)"
train-distributed train-deepspeed train-distributed-tb train-deepspeed-tb: DEFAULT_RANKS = $(or $(filter-out 0,$(N_GPUS)),2)
# Sharding the optimizer gives the same results, so it is what DeepSpeed means without a file of its own.
train-deepspeed train-deepspeed-tb: SHARD = $(if $(call given,DEEPSPEED_CONFIG),,train.shard=optimizer)
train-distributed train-deepspeed train-distributed-tb train-deepspeed-tb: $(BUILD)/lockstep
	$(if $(filter %-tb,$@),@runs=$(RUNS) && scripts/tensorboard.sh --background "$$runs")
	scripts/launch $(LAUNCH) -n $(RANKS) $(BUILD)/lockstep train $(SETTINGS)
tensorboard: $(BUILD)/lockstep
	@runs=$(RUNS) && exec scripts/tensorboard.sh "$$runs"
gpu-info: $(BUILD)/lockstep
	@$(BUILD)/lockstep gpu-info
memory-check: $(BUILD)/lockstep
	@$(BUILD)/lockstep gpu-info || true
	@echo "\`$(BUILD)/lockstep plan CONFIG --ranks N\` predicts what a training takes, and \`$(BUILD)/lockstep top RUN\` shows one that runs."
setup-accelerate: $(BUILD)/lockstep
	@echo "Nothing has to be set up:"
	@echo "  GPUs       $(or $(N_GPUS),0) here; make train-distributed starts one rank on each, or NUM_GPUS=N"
	@echo "  precision  $$($(BUILD)/lockstep train $(SETTINGS) --print-config=precision) in $(firstword $(CONFIG)); OVERRIDES=precision=bf16 sets another"
	@echo "  nodes      the job scripts of jobs/ start the ranks of all nodes, without addresses and ports: sbatch --nodes=2 ..."

# Make looks up libraries when it starts, so it is started again after `deps`.
quickstart:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@MODEL=$(MODEL) LOCKSTEP=$(BUILD)/lockstep scripts/quickstart.sh $(RANKS) $(OVERRIDES)

# ---- Tests ----------------------------------------------------------------------------------------------------------
# ONLY=PATTERN runs the tests whose name matches the regular expression; TIMINGS=FILE gets the time of each, slowest first.
# Results: $(BUILD)/*-results, which .ci/run adds up.
ONLY    ?=
TIMINGS ?=
RUN_TESTS = scripts/run-tests.sh $(if $(ONLY),--only "$(ONLY)") $(if $(TIMINGS),--timings "$(TIMINGS)")
test:
	@$(MAKE) --no-print-directory -j$(JOBS) tests
	@$(RUN_TESTS) --results $(BUILD)/test-results $(TEST_OUT)

# The single-process unit tests, built with the address and undefined behaviour sanitizers together. The CUDA backend,
# which cannot run there, is that of the other tests; the kernels that are compiled for the host are built with the
# sanitizers.
SANITIZED := $(BUILD)-asan-ubsan
for_tests := OUT=$(TEST_OUT) CUDA_ARCH="$(TEST_CUDA_ARCH)"
tests-sanitized:
	@$(MAKE) --no-print-directory -j$(JOBS) $(for_tests) test-objects $(if $(HAS_CUDA),cuda-objects)
	@$(MAKE) --no-print-directory -j$(JOBS) MODE=asan-ubsan BUILD=$(SANITIZED) OUT=$(SANITIZED) CUDA_ARCH="$(TEST_CUDA_ARCH)" \
	  RELEASE=$(BUILD) RELEASE_OUT=$(TEST_OUT) UNIT_TESTS_ONLY=1 tests-here
test-sanitized: tests-sanitized
	@$(RUN_TESTS) --sanitized --results $(BUILD)/test-sanitized-results $(SANITIZED)

# Tests that take too long for every change: those with `long: yes` in their header.
test-long:
	@scripts/deps-test.sh --long
	@$(MAKE) --no-print-directory -j$(JOBS) tests
	@$(RUN_TESTS) --long --results $(BUILD)/test-long-results $(TEST_OUT)

# One-line faults, each of which the tests must catch (test/mutations).
test-mutations:
	@$(MAKE) --no-print-directory -j$(JOBS) tests
	@python3 test/mutations/run.py --build $(TEST_OUT) --results test/mutations/results.md \
	  --make '$(MAKE) BUILD=$(BUILD) $(for_tests) ONEDNN_HOME=$(ONEDNN_HOME) CUDNN_FRONTEND_HOME=$(CUDNN_FRONTEND_HOME)'

# Plans every cuDNN graph that ResNet-18 and ResNet-50 use on an H200. GOLDEN=1 rewrites the table.
test-plans: tests
	@LOCKSTEP=$(abspath $(TEST_OUT)/lockstep) PLANS=all GOLDEN=$(GOLDEN) bash test/cuda/plans_test.sh

test-cluster: $(BUILD)/lockstep $(OUT)/test/doctor/preload.so
	@LOCKSTEP=$(abspath $(BUILD)/lockstep) test/cluster/run.sh --results $(BUILD)/test-cluster-results

# ---- For ARM (docs/contributing.md) ------------------------------------------------------------------------------------
# A separate Make cross-compiles with the libraries that arm64-sysroot.sh unpacks; mpicxx prints their paths too. The
# tests are built without CUDA, since its kernels do not run on the processor.
ARM64      := $(CURDIR)/.deps/arm64
ARM64_LIB  := $(ARM64)/usr/lib/aarch64-linux-gnu
ARM64_MAKE  = PKG_CONFIG_SYSROOT_DIR=$(ARM64) PKG_CONFIG_LIBDIR=$(ARM64_LIB)/pkgconfig OPAL_LIBDIR=$(ARM64_LIB)/openmpi/lib \
  OPAL_INCLUDEDIR=$(ARM64_LIB)/openmpi/include $(MAKE) --no-print-directory -j$(JOBS) SYSROOT=$(ARM64) \
  CXX=aarch64-linux-gnu-g++ AR=aarch64-linux-gnu-ar
arm64:
	@scripts/arm64-sysroot.sh
	@$(ARM64_MAKE) BUILD=build-arm64 CUDA_LIBS=$(if $(HAS_CUDA),-lcudart_static) build-arm64/lockstep
test-arm64:
	@scripts/arm64-run.sh true; status=$$?; \
	if [ $$status = 77 ]; then echo "0 passed, 0 failed, 1 skipped"; exit 0; elif [ $$status != 0 ]; then exit $$status; fi; \
	$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/lockstep && \
	$(ARM64_MAKE) BUILD=build-arm64-tests CUDA=0 SCRIPTS=test/arm64/training.sh tests && \
	HOST_LOCKSTEP=$(abspath $(BUILD)/lockstep) scripts/arm64-run.sh $(RUN_TESTS) --limits 20 \
	  --results $(BUILD)/test-arm64-results build-arm64-tests

# ---- Fuzzing the readers of files (test/fuzz/README.md) ---------------------------------------------------------------
FUZZ_SECONDS ?= 600
fuzz:
	@$(MAKE) --no-print-directory -j$(JOBS) MODE=fuzz BUILD=build-fuzz fuzzers
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS)

# ---- Speed, not part of `make test` ------------------------------------------------------------------
bench: $(BUILD)/lockstep benches
	@bench/run.sh $(BUILD)
bench-peers: $(BUILD)/lockstep
	@bench/peers/run.sh $(BUILD)
bench-check: $(BUILD)/lockstep benches
	@python3 bench/check.py --build $(BUILD) --python $${PYTHON:-python3}

# ---- On a GPU ---------------------------------------------------------------------------------------------------------
# `bundle` packs everything that a machine with only a GPU, CUDA and a C library lacks. There, run python3
# bench/gpu/check.py --quick, or PART, in FOLDER/tree. On this machine, run make gpu-check PART=ops. `make test-long` runs
# test/cuda/bundle_test.sh, which tests the archive while the libraries of the system are hidden (root).
BUNDLE ?= lockstep-bundle
bundle:
	@$(MAKE) --no-print-directory -j$(JOBS) BUILD=build-bundle CUDA_ARCH=$(or $(CUDA_ARCH_OF_BUNDLE),90) tests
	@scripts/bundle.sh build-bundle "$(BUNDLE)"
PART ?= ops training ranks speed lm-ops lm-training lm-speed lora generate sanitizer
gpu-check:
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/lockstep
	@$(if $(findstring --dry-run,$(CHECK_OPTIONS)),:,$(BUILD)/lockstep gpu-info)
	@$(MAKE) --no-print-directory -j$(JOBS) TEST_CUDA_ARCH=all tests
	@$(or $(PYTHON),python3) bench/gpu/check.py $(PART) --build $(BUILD) $(CHECK_OPTIONS)

# ---- Checks ---------------------------------------------------------------------------------------------------------
check: check-format check-arrows check-tidy
check-format:
	@scripts/check-format.sh
check-arrows:
	@scripts/check-arrows.sh
check-tidy: compile_commands.json $(GENERATED) $(EMBEDDED)
	@scripts/check-tidy.sh
lint: check-arrows check-tidy
format:
	@scripts/check-format.sh --fix

# ---- Dependencies ---------------------------------------------------------------------------------------------------
export ARROW CUDA CUDA_HOME DNNL
export MODULE_PREREQS
export DNNL_ROOT MPI_HOME HDF5_HOME CLI11_HOME YAML_CPP_HOME JSON_HOME FMT_HOME SPDLOG_HOME JPEG_HOME PNG_HOME PROTOBUF_HOME \
  XXHASH_HOME PCRE2_HOME UTF8PROC_HOME GTEST_HOME BENCHMARK_HOME
deps:
	@scripts/deps.sh
deps-test:
	@scripts/deps-test.sh

# ---- Installing -----------------------------------------------------------------------------------------------------
# The oneDNN of .deps/ is installed too, and the installed program looks for it there. Other libraries stay where they are.
BUNDLED := $(filter $(CURDIR)/.deps/%,$(ONEDNN_HOME))
BUNDLED_ARROW := $(if $(HAS_ARROW),$(filter $(CURDIR)/.deps/%,$(ARROW_HOME)))
INSTALLED_LDLIBS = $(if $(BUNDLED),$(subst -Wl$(comma)-rpath$(comma)$(ONEDNN_HOME)/lib64,,$(subst -Wl$(comma)-rpath$(comma)$(ONEDNN_HOME)/lib ,-Wl$(comma)-rpath$(comma)'$$ORIGIN/../lib/lockstep' ,$(LDLIBS))),$(LDLIBS))
SHARE = $(DESTDIR)$(PREFIX)/share/lockstep
COMPLETION = $(DESTDIR)$(PREFIX)/share/bash-completion/completions/lockstep
COMPLETION_OF_ZSH = $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_lockstep
MODULEFILES = $(DESTDIR)$(PREFIX)/modulefiles/lockstep
INSTALLED_FILES := LICENSE CHANGELOG.md README.md environment.yml data/README.md modules/README.md scripts/launch $(wildcard data/*.sh) \
  $(shell find docs jobs modules/site data/samples -name '*.sh' -o -name '*.md' -o -name '*.svg' -o -name '*.h5' -o -path 'data/samples/*.json' 2>/dev/null | sort)
INSTALLED_CONFIGS := $(shell find jobs/configs -name '*.yaml' -o -name '*.json' | sort)

# The installed files have the layout of the repository; LOCKSTEP_HOME is SHARE for an installation, and the root of the
# repository otherwise. In configurations, paths below data/ become paths below LOCKSTEP_DATA, and those below jobs/
# become paths below LOCKSTEP_HOME.
install: $(OUT)/lockstep lockstep-arrow
	@mkdir -p $(BUILD)/install
	@$(CXX) $(CXXFLAGS) -o $(BUILD)/install/lockstep $(BUILD)/src/main.o $(OUT)/liblockstep.a $(LDFLAGS) $(INSTALLED_LDLIBS)
	@install -D -m 755 $(BUILD)/install/lockstep $(DESTDIR)$(PREFIX)/bin/lockstep
	@$(if $(BUNDLED),install -D -m 755 $(ONEDNN_HOME)/lib/libdnnl.so.3 $(DESTDIR)$(PREFIX)/lib/lockstep/libdnnl.so.3)
	@$(if $(ARROW_PROGRAM),install -D -m 755 $(ARROW_PROGRAM) $(DESTDIR)$(PREFIX)/lib/lockstep/lockstep-arrow)
	@$(if $(BUNDLED_ARROW),install -m 755 $(wildcard $(ARROW_HOME)/lib/lib*.so.*) $(DESTDIR)$(PREFIX)/lib/lockstep/)
	@$(foreach file,$(INSTALLED_FILES),install -D -m $(if $(shell test -x $(file) && echo yes),755,644) $(file) $(SHARE)/$(file) &&) true
	@$(foreach file,$(INSTALLED_CONFIGS),install -d $(SHARE)/$(dir $(file)) && sed -e 's#: data/#: $${LOCKSTEP_DATA}/#' -e 's#: jobs/#: $${LOCKSTEP_HOME}/jobs/#' $(file) > $(SHARE)/$(file) &&) true
	@install -D -m 644 src/commands/completion.bash $(COMPLETION)
	@install -D -m 644 src/commands/completion.zsh $(COMPLETION_OF_ZSH)
	@modules/write-modulefiles.sh $(MODULEFILES) $(PREFIX) $(VERSION) $(if $(HAS_CUDA),cuda)
	@echo "Installed $(DESTDIR)$(PREFIX)/bin/lockstep and its modulefiles. To use it:"
	@echo "  module use $(PREFIX)/modulefiles && module load lockstep"
	@echo "  $(PREFIX)/share/lockstep/scripts/launch $(notdir $(MPIRUN)) --bind-to none -n 2 lockstep train $(PREFIX)/share/lockstep/jobs/configs/quickstart.yaml"
	@echo "The libraries that it needs are installed by \`make deps\`, not by \`make install\`."
	@echo "Without modules: export PATH=$(PREFIX)/bin:\$$PATH LOCKSTEP_HOME=$(PREFIX)/share/lockstep LOCKSTEP_DATA=$(PREFIX)/share/lockstep/data"
uninstall:
	rm -rf $(DESTDIR)$(PREFIX)/bin/lockstep $(DESTDIR)$(PREFIX)/lib/lockstep $(SHARE) $(COMPLETION) $(COMPLETION_OF_ZSH) \
	  $(MODULEFILES)/$(VERSION) $(MODULEFILES)/$(VERSION).lua

clean:
	rm -rf $(BUILD) $(SANITIZED) $(if $(filter build,$(BUILD)),$(addprefix build-,$(MODES))) compile_commands.json

define HELP
Targets
  make                 builds build/lockstep
  make quickstart      installs missing dependencies, builds, trains ResNet-18 on 2 ranks for a few minutes, evaluates it;
                       MODEL=text trains a small language model instead
  make train           trains: CONFIG=FILE.yaml RANKS=2 OVERRIDES="train.epochs=3 ..."
  make train-distributed, train-deepspeed
                       the same on all GPUs; NUM_GPUS=2 TRAIN_BATCH_SIZE=1 DEEPSPEED_CONFIG=ds.json (docs/coming-from.md)
  make train-distributed-tb, train-deepspeed-tb
                       the same, with TensorBoard in the background; make tensorboard: only TensorBoard
  make gpu-info, memory-check, setup-accelerate
                       the GPUs; their memory; what is automatic
  make test            builds and runs the tests; ONLY=PATTERN: only those whose name matches, and their programs; TIMINGS=FILE: their times
  make test-sanitized  the unit tests of one process, built with the address and undefined-behaviour sanitizers
  make test-long       the tests that take many minutes and are not part of `make test`
  make test-mutations  applies one-line faults, one at a time, and shows that the tests catch each of them (15 minutes)
  make test-plans      makes all plans of cuDNN for an H200, on a machine without a GPU
  make arm64           cross-compiles build-arm64/lockstep for ARM (aarch64); on Debian as root, installs what that needs
  make test-arm64      its tests, under qemu (2 hours)
  make test-cluster    job scripts, stops, crashes and wrong inputs on a small Slurm cluster on this machine (root)
  make bundle          packs what a machine with a GPU but without MPI or HDF5 needs to run the tests and benchmarks
  make gpu-check       checks a GPU and writes a report to bench/results; PART=--quick|ops|training|ranks|speed|lm-ops|lm-training|lm-speed|lora|generate|sanitizer
  make fuzz            fuzzes the readers of files under sanitizers, FUZZ_SECONDS=600 of processor time each (clang)
  make bench           micro and macro benchmarks
  make bench-peers     compares the speed with PyTorch (PYTHON)
  make bench-check     checks the speeds that must not get worse
  make check           check-format, check-arrows (dependencies between folders) and check-tidy (clang-tidy)
  make format          formats the sources with .clang-format
  make lint            check-arrows and check-tidy
  make deps            installs what building needs (with apt as root; otherwise prints the commands)
  make deps-test       installs what only tests need
  make install         installs program, jobs, configurations, documentation and modulefiles: PREFIX=/usr/local DESTDIR=
                       MODULE_PREREQS="gcc openmpi" (modules that must be loaded first)
  make uninstall       removes them
  make tests           builds the tests: one program per folder of test/
  make clean           removes the build folders, but not .deps

Variables
  MODE=release         release | debug | asan | ubsan | asan-ubsan | tsan; each has a build folder of its own
  BUILD=build          the build folder
  CXX, MPICXX, MPIRUN  compiler, MPI compiler wrapper and launcher
  DNNL_ROOT            oneDNN 3.2 or newer; DNNL=0 builds without: Lockstep's own kernels take its place
  MPI_HOME HDF5_HOME CLI11_HOME YAML_CPP_HOME JSON_HOME FMT_HOME SPDLOG_HOME JPEG_HOME PNG_HOME PROTOBUF_HOME XXHASH_HOME
  PCRE2_HOME UTF8PROC_HOME GTEST_HOME BENCHMARK_HOME
                     the folders of other libraries that pkg-config does not find
  CUDA_HOME            CUDA 12.4 or newer (default: that of the nvcc on PATH); CUDA=0 builds without CUDA
  CUDNN_HOME NCCL_HOME CUDNN_FRONTEND_HOME
                       the folders of cuDNN, NCCL and cudnn-frontend
  CUDA_ARCH="80 90"    the GPUs to compile for (default: those of 70, 75, 80, 90 and 100 that nvcc knows)
  TEST_CUDA_ARCH=90    the GPU that tests are compiled for; `all`: those of CUDA_ARCH
  PYTHON=python3       a Python with torch, torchvision and transformers, for bench-peers
  JOBS                 compilers at the same time in quickstart and test (default: all cores)
  TOGETHER=0           compiles each source alone, for changing one after another (docs/contributing.md)
endef
export HELP
help:
	@printf '%s\n' "$$HELP"

.PHONY: train train-distributed train-deepspeed train-distributed-tb train-deepspeed-tb tensorboard gpu-info memory-check setup-accelerate quickstart test arm64 test-arm64 tests-sanitized test-sanitized test-long test-mutations test-plans test-cluster fuzz bundle gpu-check bench bench-peers bench-check check check-format check-arrows check-tidy lint \
  format deps deps-test install uninstall clean help
