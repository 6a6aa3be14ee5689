# Lockstep. `make help` lists the targets and variables.
MODE  ?= release
BUILD ?= build
CXX   ?= g++
DNNL_ROOT ?= .deps/onednn
MPICXX_FLAGS := $(shell mpicxx --showme:compile 2>/dev/null)
MPI_LIBS     := $(shell mpicxx --showme:link 2>/dev/null)
HDF5_CFLAGS  := $(shell pkg-config --cflags hdf5 2>/dev/null)
HDF5_LIBS    := $(shell pkg-config --libs hdf5 2>/dev/null || echo -lhdf5)

OPT_release := -O3 -g
OPT_debug   := -O0 -g -D_GLIBCXX_ASSERTIONS
OPT_asan    := -O1 -g -fsanitize=address -fno-omit-frame-pointer
OPT_ubsan   := -O1 -g -fsanitize=undefined -fno-sanitize-recover=undefined
OPT_tsan    := -O1 -g -fsanitize=thread
CPPFLAGS += -Iinclude -Isrc -I. -isystem $(DNNL_ROOT)/include $(HDF5_CFLAGS) $(MPICXX_FLAGS)
CXXFLAGS += -std=c++20 $(OPT_$(MODE)) -fopenmp -Wall -Wextra -Werror -MMD -MP
LDLIBS   += -L$(DNNL_ROOT)/lib -Wl,-rpath,$(abspath $(DNNL_ROOT))/lib -ldnnl $(HDF5_LIBS) $(MPI_LIBS) -lyaml-cpp -lspdlog -lfmt -lprotobuf -lxxhash -ljpeg -lpthread -ldl

SOURCES := $(filter-out src/main.cpp,$(wildcard src/*.cpp src/*/*.cpp kernels/cpu/*.cpp))
OBJECTS := $(SOURCES:%.cpp=$(BUILD)/%.o)
TESTS   := $(patsubst %.cpp,$(BUILD)/%,$(wildcard test/*_test.cpp test/*/*_test.cpp))
TEST_SUPPORT := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out %_test.cpp,$(wildcard test/*.cpp test/*/*.cpp)))

all: $(BUILD)/lockstep
$(BUILD)/lockstep: $(BUILD)/src/main.o $(OBJECTS)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDFLAGS) $(LDLIBS)
$(BUILD)/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<
tests: $(TESTS)
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all tests
.SECONDARY:
