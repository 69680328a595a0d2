# `make help` lists the targets. Variables: CC, OPT, BUILD, SANITIZE, PREFIX, LIBDIR, DESTDIR.

# ccache, where it is: its folder has programs with the names of the compilers.
CCACHE := $(firstword $(wildcard /usr/lib/ccache /usr/lib64/ccache))
export PATH := $(CCACHE:%=%:)$(PATH)

BUILD ?= build
CC ?= cc
OBJCOPY ?= objcopy
OPT ?= -O2
SANITIZE ?=
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
DESTDIR ?=
PACKAGES := openblas jansson zlib libcrypto libpng

# -ffp-contract=off: a fused multiply-add would change bits from machine to machine.
# -fPIC: the tests share one library.
CFLAGS = -std=gnu11 $(OPT) -g -ffp-contract=off -fopenmp -fPIC -fno-semantic-interposition -Wall -Wextra -Werror -Iref -MMD -MP $(SANITIZE)
# -Wno-pass-failed: clang warns where `omp simd` is not followed, as with sanitizers.
CFLAGS += -Wno-pass-failed $(PACKAGE_CFLAGS)
# Expanded when something is compiled, and then once: what is missing is said in one line, not by the compiler.
PACKAGE_CFLAGS = $(eval MISSING := $$(shell CC='$$(CC)' scripts/setup.sh --missing))$(if $(MISSING),$(error \
	$(MISSING)))$(eval PACKAGE_CFLAGS := $$(shell pkg-config --cflags $$(PACKAGES)))$(PACKAGE_CFLAGS)
LDFLAGS := $(SANITIZE)
LDLIBS = $(shell pkg-config --libs $(PACKAGES)) -ldl -lm

# Compiled twice, for float and for double: the operators and the forward pass. The rest does not depend on `real`.
TWICE := $(filter-out $(patsubst %,ref/ops/fast/%.c,kernels fused wide),$(wildcard ref/ops/*.c ref/ops/fast/*.c))
TWICE += $(patsubst %,ref/model/%.c,engine weights/pages divided/experts divided/keys divided/rows divided/share)
TWICE += $(wildcard ref/model/forward/*.c ref/model/backward/*.c ref/train/*.c)
ONCE := $(filter-out $(TWICE),$(wildcard $(foreach f,base io io/* ranks model model/divided model/files model/graph model/resume model/weights decode library watch oracle/* oracle/error/* oracle/judge/* oracle/operators/* oracle/variants/mistakes estimate estimate/documents,ref/$(f)/*.c)))
ONCE := ref/ops/math.c $(filter-out ref/oracle/error/kernels.c,$(ONCE))
DATA := ref/oracle/report/data.S
CLI := $(wildcard ref/cli/*.c ref/cli/*/*.c)

# The inner loops are compiled once more for each instruction set, and chosen at run time.
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine)),)
KERNELS := portable avx2 avx512
else
KERNELS := portable
endif
KERNELS_avx2 := -mavx2 -mfma
KERNELS_avx512 := -mavx512f -mavx512dq -mavx512bw -mavx512vl -mprefer-vector-width=512

# The objects of engine $(1) that belong to instruction sets.
kernels = $(foreach k,$(KERNELS),$(BUILD)/$(1)/kernels_$(k).o $(BUILD)/$(1)/fused_$(k).o \
            $(BUILD)/$(1)/wide_$(k).o)

REAL_f32 :=
REAL_f64 := -DM3_REAL_IS_DOUBLE

# A virtual environment with NumPy and pytest: the tests of the Python package, the coverage map.
PYTHON := build/python
# One with the public PyTorch code, which makes the goldens.
VENV := $(BUILD)/venv

LIBRARY := $(BUILD)/libm3ref.a
PROGRAM := $(BUILD)/m3ref
SHARED := $(BUILD)/libm3ref.so
LIBRARY_ABI := $(shell sed -n "s/.*M3_LIBRARY_ABI = \([0-9]*\).*/\1/p" ref/library/library.h)
SONAME := libm3ref.so.$(LIBRARY_ABI)

# MPI=0: without the library for several ranks; MPI=1: mpicc must be there. By default it is built if mpicc is Open MPI's.
MPICC ?= mpicc
MPI ?= $(if $(shell $(MPICC) --showme:version 2>/dev/null),1,0)

.PHONY: all help setup run test check test-quick cuda golden golden-check no-false-alarms bench bench-torch bench-readme
.PHONY: asan bits aarch64-bits install clean
.PHONY: outputs bench-large kills answer-power compile-commands documents engines format format-check index power kill-matrix
all: $(PROGRAM) $(SHARED) $(if $(filter-out 0,$(MPI)),$(BUILD)/libm3ref_mpi.so)

# Several ranks: a library of its own, which the program opens only under mpirun.
$(BUILD)/libm3ref_mpi.so: ref/ranks/mpi/mpi.c ref/ranks/transport.h
	@command -v $(MPICC) >/dev/null || { echo 'make MPI=1: $(MPICC) is not there; libopenmpi-dev has it (MPICC=...)' >&2; exit 1; }
	@mkdir -p $(@D)
	OMPI_CC='$(CC)' $(MPICC) $(filter-out -fopenmp -MMD -MP,$(CFLAGS)) -shared $(LDFLAGS) -o $@ $<


help:
	@echo 'make run           set up, build, run the tiny model against its goldens, stage by stage'
	@echo 'make test          set up, build, all tests; last line: N passed, N failed'
	@echo 'make check         the same as make test'
	@echo 'make test-quick    in less than a minute: operators, readers of files, parts of the model and of the judges, by'
	@echo '                   those tests in C that do not start the program and take less than five seconds each'
	@echo 'make bits          ordered sums give the recorded bits with gcc and clang at -O1, -O2, -O3'
	@echo 'make aarch64-bits  the same on AArch64, with a cross-compiler and qemu-user; status 69 where they are missing'
	@echo 'make asan          all tests under the address and undefined-behaviour sanitizers'
	@echo '                   (ONLY=units: only tests in C that do not start the program)'
	@echo 'make tsan          the program and tests with threads: no data race (clang with ThreadSanitizer and Archer)'
	@echo 'make valgrind      the commands under memcheck'
	@echo 'make analyze       gcc -fanalyzer, clang-tidy, cppcheck: no findings (TOOLS=cppcheck FILES="ref/io/*")'
	@echo 'make coverage      which lines and branches the tests and the faults reach, per folder; HTML in build/coverage'
	@echo 'make kills         commands that write, killed at 1,000 random moments: what they leave (COUNT=N)'
	@echo 'make fuzz          runs every reader of files on mutated input and prints a table of the results'
	@echo '                   (FUZZ_SECONDS=120 for each reader, 0: only the kept input; FUZZ=compare,png: only these)'
	@echo 'make faults        every allocation and every system call fails once, in each command (FAULTS=run,compare: in these)'
	@echo 'make nightly       all that CI runs a slice of, and the other long checks; hours'
	@echo 'make bench         speeds beside the limits of this machine and the goals; into build/bench.json (FILE=...)'
	@echo 'make bench-torch   the same, and the public PyTorch code on the same work'
	@echo 'make bench-readme  the tables of README from scripts/bench/bench.json'
	@echo 'make bench-large   two layers of the released size, 29 GB, beside a read of the disk; killed and resumed'
	@echo '                   (EXPERTS=12: a part of the experts). Removes what it writes'
	@echo 'make cuda          the library for `run --ops cuda`: sparse attention and experts on a GPU (needs nvcc)'
	@echo 'make cuda-test     operators and goldens on the device; last line: N passed, N failed; status 69 if'
	@echo '                   there is no device'
	@echo 'make cuda-pack     an archive with which a machine that has a driver and nothing else tests and times the kernels'
	@echo 'make cuda-resources  registers, spills and loads in flight of each kernel, as compiled (TARGET=90)'
	@echo 'make cuda-bench    speeds on the device beside its limits and beside the installed PyTorch'
	@echo 'make MPI=0         without the library for mpirun, which is built if mpicc is there (MPI=1: it must be)'
	@echo 'make golden        make golden/ again from the public PyTorch code (needs the network once)'
	@echo 'make golden-check  make it again elsewhere and demand equality'
	@echo 'make no-false-alarms  legitimate candidates on 20 random models: nothing may be called wrong (SLICE=0 to 9: on two)'
	@echo 'make engines       runs public engines on the models and cases of golden/, judges them, and writes the verdicts'
	@echo '                   to golden/ENGINES.md (ENGINE=mlx_lm: one of them); installs each in build/engines. Also'
	@echo '                   runs some with mistakes put in on purpose, which must be found (MISTAKES=0: does not)'
	@echo 'make power         which known mistakes the judges see, into ref/oracle/POWER.md (CHECK=1: computes a'
	@echo '                   part of the page, and compares it with the page)'
	@echo 'make answer-power  which known mistakes are seen in log-probabilities, into ref/oracle/judge/server/POWER.md'
	@echo 'make kill-matrix   for each case of an operator and each golden: the known mistakes that it catches, and the'
	@echo '                   formulas, branches, clamps, tie rules and edges of SPEC.md that it covers; into golden/op'
	@echo 'make outputs KEEP=FOLDER [AGAINST=FOLDER]  keeps what 380 commands print and write; compares it with that of'
	@echo '                   another program, before a change of structure and after it'
	@echo 'make compile-commands  compile_commands.json, for editors'
	@echo 'make format        lay out the C code as .clang-format says; make format-check only says where it is not'
	@echo 'make documents     golden/documents/README.md from the tables beside it'
	@echo 'make index         the index of SPEC.md from scripts/make/spec_index.tsv'
	@echo 'make install       program, libraries, headers, pkg-config file, manual pages, completions for shells, golden/ and'
	@echo '                   licence to PREFIX ($(PREFIX)), with DESTDIR before it; make uninstall removes them'
	@echo 'make wheel         a Python wheel, with the libraries that m3ref uses, into build/wheel'
	@echo 'make clean-root    wheel, installation and GitHub action in a fresh Debian system (needs root and debootstrap)'

setup:
	@scripts/setup.sh tests

# Set-up runs first, in a separate make, because it installs the packages that this one passes to pkg-config.
run:
	@scripts/setup.sh
	@$(MAKE) -s -j$$(nproc) all
	@scripts/demo.sh $(BUILD)/m3ref $(BUILD)

test check: setup
	@$(MAKE) -s -j$$(nproc) all test-programs
	@$(MAKE) -s tests

test-quick: setup
	@$(MAKE) -s -j$$(nproc) quick-tests

# ---- program and library

# The commit, "unknown" without git: for --version. Written anew only if it is another one.
COMMIT := $(BUILD)/commit.c
.PHONY: FORCE
$(COMMIT): FORCE
	@mkdir -p $(@D)
	@echo "extern const char m3_cli_commit[]; const char m3_cli_commit[] = \"$$(git describe --always --dirty --exclude '*' \
		--abbrev=12 2>/dev/null || echo unknown)\";" >$@.part; cmp -s $@.part $@ && rm $@.part || mv $@.part $@
$(BUILD)/commit.o: $(COMMIT)
	$(CC) $(CFLAGS) -c -o $@ $<

# -rdynamic: a plug-in calls the functions of ref/base.
CLI_OBJECTS := $(CLI:ref/%.c=$(BUILD)/once/%.o) $(BUILD)/commit.o
$(PROGRAM): $(CLI_OBJECTS) $(LIBRARY)
	$(CC) -fopenmp -rdynamic $(LDFLAGS) -o $@ $^ $(LDLIBS)

# The figures that documents print, the models that they are about, and the data of GPUs become tables in the program.
TABLE := $(BUILD)/once/estimate/documents/table
$(TABLE).c: scripts/make/documents_table.awk golden/documents/figures.tsv golden/documents/models.tsv
CARDS := $(BUILD)/once/estimate/cards
$(CARDS).c: scripts/make/cards_table.awk ref/estimate/cards.tsv
$(TABLE).c $(CARDS).c:
	@mkdir -p $(@D)
	awk -f $^ >$@.part && mv $@.part $@
$(TABLE).o $(CARDS).o: %.o: %.c
	$(CC) $(CFLAGS) -c -o $@ $<

ERROR_KERNELS := $(foreach k,$(KERNELS),$(BUILD)/once/oracle/error/kernels_$(k).o)
OBJECTS := $(TABLE).o $(CARDS).o $(ONCE:ref/%.c=$(BUILD)/once/%.o) $(ERROR_KERNELS) $(DATA:ref/%.S=$(BUILD)/once/%.o) \
           $(BUILD)/built_in.o $(BUILD)/engine_f32.o $(BUILD)/engine_f64.o
$(LIBRARY): $(OBJECTS)
	@rm -f $@
	$(AR) rcs $@ $^

# The shared library shows the functions of m3ref.h and of the headers that it includes, and no others: in a process
# with PyTorch no name of ours may replace one of its own, or the reverse.
headers = $(CC) $(CFLAGS) -MM -MF - $(1) | tr -d '\\' | tr ' ' '\n' | grep -E '^ref/.*\.(h|def)$$' | sort -u
$(BUILD)/exported: ref/m3ref.h $(wildcard ref/*/*.h ref/*/*/*.h) Makefile
	@mkdir -p $(@D)
	@{ echo "M3REF_$(LIBRARY_ABI) { global:"; $(call headers,$<) | \
	   xargs sed -n '/inline/d; s/^[a-z].*[ *]\(m3_[a-z0-9_]*\)(.*/\1;/p' | sort -u; echo 'local: *; };'; } >$@
$(SHARED): $(LIBRARY) $(BUILD)/exported
	$(CC) -shared -fopenmp $(LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,$(SONAME) -Wl,--version-script=$(BUILD)/exported \
		-Wl,--whole-archive $(LIBRARY) -Wl,--no-whole-archive -o $@ $(LDLIBS)

$(BUILD)/once/%.o: ref/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

# -fno-math-errno: a square root that sets errno does not vectorise.
$(ERROR_KERNELS): $(BUILD)/once/oracle/error/kernels_%.o: ref/oracle/error/kernels.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KERNELS_$*) -fno-math-errno -DM3_KERNELS=m3_error_kernels_$* -DM3_KERNELS_NAME='"$*"' -c -o $@ $<

# Files that are included unchanged.
$(BUILD)/once/%.o: ref/%.S SPEC.md ref/oracle/VERDICTS.md
	@mkdir -p $(@D)
	$(CC) -c -o $@ $<

# The built-in profiles, the words that may follow them, and the maps of other programs' names, named after their files.
PROFILES := $(sort $(wildcard ref/oracle/error/profiles/*.json))
WORDS := $(sort $(wildcard ref/oracle/error/profiles/words/*.json))
MAPS := $(sort $(wildcard ref/oracle/map/maps/*.json))
texts = echo 'const char *const $(1)[][2] = {'; for f in $(2); do echo "{ \"$$(basename $$f .json)\","; \
	sed 's/["\\]/\\&/g; s/.*/"&\\n"/' $$f; echo '},'; done; echo '{ NULL, NULL } };'
$(BUILD)/built_in.c: $(PROFILES) $(WORDS) $(MAPS) Makefile
	@mkdir -p $(@D)
	@{ echo '#include "oracle/error/profile.h"'; echo '#include "oracle/map/map.h"'; \
	   $(call texts,m3_built_in_profiles,$(PROFILES)); $(call texts,m3_profile_word_texts,$(WORDS)); \
	   $(call texts,m3_built_in_maps,$(MAPS)); } > $@
$(BUILD)/built_in.o: $(BUILD)/built_in.c
	$(CC) $(CFLAGS) -c -o $@ $<

# One engine is one object with one visible symbol, so that both fit into a process.
define engine
$(BUILD)/$(1)/%.o: ref/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $(REAL_$(1)) -c -o $$@ $$<

$(foreach k,$(KERNELS),$(BUILD)/$(1)/kernels_$(k).o): $(BUILD)/$(1)/kernels_%.o: ref/ops/fast/kernels.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $(REAL_$(1)) $$(KERNELS_$$*) -DM3_KERNELS=m3_kernels_$$* -DM3_FUSED=m3_fused_$$* \
		-DM3_WIDE=m3_wide_$$* -DM3_KERNELS_NAME='"$$*"' -c -o $$@ $$<

# Sums in double, in both engines.
$(foreach k,$(KERNELS),$(BUILD)/$(1)/wide_$(k).o): $(BUILD)/$(1)/wide_%.o: ref/ops/fast/wide.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $(REAL_f64) $$(KERNELS_$$*) -DM3_WIDE=m3_wide_$$* -c -o $$@ $$<

# The one file whose sums have no promised order.
$(foreach k,$(KERNELS),$(BUILD)/$(1)/fused_$(k).o): $(BUILD)/$(1)/fused_%.o: ref/ops/fast/fused.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $(REAL_$(1)) $$(KERNELS_$$*) -DM3_FUSED=m3_fused_$$* -c -o $$@ $$<

$(BUILD)/engine_$(1).o: $(TWICE:ref/%.c=$(BUILD)/$(1)/%.o) $(call kernels,$(1))
	$(LD) -r -o $$@.all $$^
	$(OBJCOPY) --keep-global-symbol=m3_engine_$(1) $$@.all $$@
	@rm $$@.all
endef
$(eval $(call engine,f32))
$(eval $(call engine,f64))

# ---- cases of single operators

# What the program prints and writes, before a change of structure and after it.
outputs: all
	python3 scripts/checks/outputs.py $(PROGRAM) $(KEEP) $(AGAINST:%=--against %)

kill-matrix: $(PROGRAM) $(PYTHON)/ready
	python3 scripts/kill_matrix.py $(PROGRAM) golden/op
	$(PYTHON)/bin/python scripts/coverage/map.py $(PROGRAM) golden/op

# ---- CUDA, optional: a plug-in for the program

NVCC ?= nvcc
# Code for these targets, as far as the compiler (12.4 or later) knows them; sm_86 and sm_89 run that of 80. Of the newest
# also PTX, which a driver compiles for devices that are newer.
CUDA_TARGETS ?= $(filter $(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)),80 90 100 120)
CUDA := $(wildcard ref/cuda/*.cu)
CUDA_FLAGS = -std=c++17 -O3 -Iref -Xcompiler -fPIC,-Wall,-Wextra,-Werror -MMD -MP $(CUDA_CODE)
CUDA_CODE = $(foreach t,$(CUDA_TARGETS),-gencode arch=compute_$(t),code=sm_$(t)) $(addprefix -gencode arch=compute_,$(foreach \
	t,$(lastword $(CUDA_TARGETS)),$(t),code=compute_$(t)))

cuda: all $(BUILD)/libm3ref_cuda.so
$(BUILD)/libm3ref_cuda.so: $(CUDA:ref/cuda/%.cu=$(BUILD)/cuda/%.o)
	$(NVCC) -shared -cudart static -o $@ $^

$(BUILD)/cuda/%.o: ref/cuda/%.cu
	@command -v $(NVCC) >/dev/null || { echo 'make cuda: $(NVCC) is not there; the CUDA toolkit has it (NVCC=...)' >&2; exit 1; }
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_FLAGS) -c -o $@ $<

.PHONY: cuda-test cuda-tests cuda-bench cuda-pack cuda-resources
cuda-test: setup
	@$(MAKE) -s -j$$(nproc) cuda-tests
	@BUILD=$(BUILD) scripts/cuda/cuda_test.sh
cuda-tests: cuda device-tests $(BUILD)/cuda_bench

# An archive that needs nothing but a driver.
cuda-pack: setup
	@$(MAKE) -s -j$$(nproc) cuda-tests
	@scripts/cuda/cuda_pack.sh $(BUILD)

# Registers, spills and loads in flight of each kernel. TARGET=90
TARGET ?= 90
cuda-resources:
	@python3 scripts/cuda/cuda_resources.py $(TARGET)

# The bench does not need the program or its libraries.
CUDA_KERNELS := $(filter-out %/table.cu %/memory.cu,$(CUDA))
cuda-bench:
	@$(MAKE) -s -j$$(nproc) $(BUILD)/cuda_bench
	@python3 scripts/cuda/cuda_bench.py $(BUILD)/cuda_bench --json $(BUILD)/cuda_bench.json
$(BUILD)/cuda/bench/%.o: scripts/cuda/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_FLAGS) -c -o $@ $<
$(BUILD)/cuda_bench: $(BUILD)/cuda/bench/cuda_bench.o $(CUDA_KERNELS:ref/cuda/%.cu=$(BUILD)/cuda/%.o)
	$(NVCC) -cudart static -o $@ $^

# ---- tests: one program per file; those of the operators once per engine, and per body

# tests/ mirrors ref/. A program has the name of its file, wherever that is.
TEST_SOURCES := $(shell find tests -name 'test_*.c*')
OPERATORS := $(filter-out math,$(patsubst test_%.c,%,$(notdir $(filter tests/ops/%.c tests/train/%.c,$(TEST_SOURCES)))))
vpath test_%.c $(sort $(dir $(TEST_SOURCES)))
vpath test_%.cc tests/cuda
UNITS := $(filter-out $(OPERATORS),$(patsubst test_%.c,%,$(notdir $(filter %.c,$(TEST_SOURCES)))))
TESTS := $(UNITS:%=$(BUILD)/tests/test_%) $(foreach o,$(OPERATORS),$(BUILD)/tests/test_$(o)_f32 $(BUILD)/tests/test_$(o)_f64)
CUDA_OPERATORS := linear block_scores select_blocks attend_blocks route experts
CUDA_UNITS := $(filter-out cuda_memory,$(patsubst test_%.cc,%,$(notdir $(filter %.cc,$(TEST_SOURCES)))))
CUDA_DEVICES := on_cpu no_device little_memory some_memory
TESTS += $(CUDA_OPERATORS:%=$(BUILD)/tests/test_%_cuda) $(CUDA_UNITS:%=$(BUILD)/tests/test_%) $(BUILD)/tests/test_cuda_memory
TEST_CFLAGS = $(CFLAGS) -Itests/support -Itests/twins $(shell pkg-config --cflags check)
TEST_LDLIBS = $(TEST_LIBRARY) -Wl,-rpath,'$$ORIGIN/..' $(shell pkg-config --libs check) $(LDLIBS)

# Everything except main, for all tests, which are not linked again when it changes.
TEST_LIBRARY := $(BUILD)/libm3ref_tests.so
$(TEST_LIBRARY): $(filter-out %/main.o,$(CLI_OBJECTS)) $(OBJECTS)
	$(CC) -shared -fopenmp $(LDFLAGS) -o $@ $^ $(LDLIBS)
include tests/fuzz/fuzz.mk

# The functions that tests call inside the engines, which export a single symbol.
INSIDE_math := $(BUILD)/f64/ops/math.o
INSIDE_kernels_f32 := $(call kernels,f32) $(BUILD)/f32/ops/fast/kernels_pick.o
INSIDE_kernels_f64 := $(call kernels,f64) $(BUILD)/f64/ops/fast/kernels_pick.o
# All operators of an engine except the choice of kernels, which the test makes.
bodies = $(patsubst ref/%.c,$(BUILD)/$(1)/%.o,$(filter-out %/kernels_pick.c,$(filter ref/ops/%,$(TWICE)))) \
         $(call kernels,$(1))
INSIDE_bodies_f32 := $(call bodies,f32)
INSIDE_bodies_f64 := $(call bodies,f64)
# The plain bodies and their derivatives.
plain = $(patsubst ref/%.c,$(BUILD)/$(1)/%.o,$(filter-out ref/ops/math.c ref/ops/outside.c,$(wildcard ref/ops/*.c)))
DERIVATIVES := backward_elements backward_rows backward_attend backward_experts
$(foreach d,$(DERIVATIVES),$(eval INSIDE_$(d)_f32 := $(call plain,f32))$(eval INSIDE_$(d)_f64 := $(call plain,f64)))
losses = $(call plain,$(1)) $(patsubst ref/%.c,$(BUILD)/$(1)/%.o,$(wildcard ref/train/*.c))
INSIDE_losses_f32 := $(call losses,f32)
INSIDE_losses_f64 := $(call losses,f64)
INSIDE_backward_bodies_f32 := $(call bodies,f32)
INSIDE_backward_bodies_f64 := $(call bodies,f64)
INSIDE_lightning_attention_f32 := $(BUILD)/f32/ops/lightning_attention.o
INSIDE_lightning_attention_f64 := $(BUILD)/f64/ops/lightning_attention.o
INSIDE_math_vectors_f32 := $(INSIDE_lightning_attention_f32)
INSIDE_math_vectors_f64 := $(INSIDE_lightning_attention_f64)
LIBS_math := -lmpfr -lgmp

.PHONY: tests test-programs
PLUGINS := bad_norm counting_embed plain_table throwing_norm worse_norm wrong_rope wrong_route wrong_vision_rope
test-programs: $(TESTS) $(PLUGINS:%=$(BUILD)/tests/%.so) $(CUDA_DEVICES:%=$(BUILD)/tests/cuda_%.so) \
               $(BUILD)/tests/cuda_bench $(BUILD)/tests/ordered_bits $(if $(findstring thread,$(SANITIZE)),,$(BUILD)/tests/fault_server)
# Without the network the tests that need it fail, and the others run.
$(PYTHON)/ready: scripts/requirements-python.txt
	@scripts/venv.sh $(PYTHON) $< && touch $@ || echo 'set-up: $(PYTHON) could not be made' >&2

# They take more than five seconds of a processor each. They begin first, so that none runs alone at the end.
SLOW := known_bugs named_mistakes op_mistakes cli_cuda attend_blocks_cuda kernels experts_cuda forward cli_check cli_ops cache cli_reports \
        judged_draws operator_check select_blocks_cuda linear_cuda json bodies_f64 ops_plain op_drawn \
        op_from_dump paths envelope_make math bodies_f32 backward_bodies_f32 backward_bodies_f64 op_witness generate blame op_results
SLOW_TESTS := $(filter $(SLOW:%=$(BUILD)/tests/test_%),$(TESTS))
tests: all test-programs $(PYTHON)/ready
	@BUILD=$(BUILD) CC='$(CC)' tests/run.sh $(SLOW_TESTS) $(shell find tests -name 'test_*.sh') $(filter-out $(SLOW_TESTS),$(TESTS))

$(BUILD)/tests/harness.o: tests/support/harness.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -c -o $@ $<

.SECONDEXPANSION:
$(UNITS:%=$(BUILD)/tests/test_%): $(BUILD)/tests/test_%: test_%.c $(BUILD)/tests/harness.o $$(INSIDE_$$*) | $(TEST_LIBRARY)
	$(CC) $(TEST_CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.o %.a,$^) $(LIBS_$*) $(TEST_LDLIBS)

$(OPERATORS:%=$(BUILD)/tests/test_%_f32): $(BUILD)/tests/test_%_f32: test_%.c $(BUILD)/tests/harness.o $$(INSIDE_$$*_f32) | $(TEST_LIBRARY)
	$(CC) $(TEST_CFLAGS) $(REAL_f32) $(LDFLAGS) -o $@ $(filter %.c %.o %.a,$^) $(TEST_LDLIBS)

$(OPERATORS:%=$(BUILD)/tests/test_%_f64): $(BUILD)/tests/test_%_f64: test_%.c $(BUILD)/tests/harness.o $$(INSIDE_$$*_f64) | $(TEST_LIBRARY)
	$(CC) $(TEST_CFLAGS) $(REAL_f64) $(LDFLAGS) -o $@ $(filter %.c %.o %.a,$^) $(TEST_LDLIBS)

# For tests/whole/test_ordered_bits.sh: what fixes the bits of ordered sums, and nothing that judges them.
BITS := $(filter $(patsubst %,$(BUILD)/once/%,base/% io/% ops/% model/% ranks/%),$(ONCE:ref/%.c=$(BUILD)/once/%.o))
$(BUILD)/tests/ordered_bits: tests/support/ordered_bits.c $(BITS) $(BUILD)/engine_f32.o $(BUILD)/engine_f64.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.o,$^) $(LDLIBS)

# For scripts/judging_from_little.py.
$(BUILD)/tests/mistaken_dumps: tests/support/mistaken_dumps.c tests/support/mistaken.h $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a %.so,$^) $(LDLIBS)

# For scripts/answer_power.py.
$(BUILD)/tests/answer_power: tests/support/answer_power.c $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a %.so,$^) $(LDLIBS)

$(patsubst %,$(BUILD)/tests/%.so,$(filter-out throwing_norm,$(PLUGINS))): $(BUILD)/tests/%.so: tests/plugins/%.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -shared -fPIC -o $@ $<
$(BUILD)/tests/throwing_norm.so: tests/plugins/throwing_norm.cc
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -shared -o $@ $<

# ---- faults: tests/faults/README.md

.PHONY: faults faults-slice faults-python fault-server
FAULT_OBJECTS := $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(wildcard tests/faults/*.c)) $(BUILD)/tests/faults/program.o
$(BUILD)/tests/faults/%.o: tests/faults/%.c
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize%,$(CFLAGS)) $(if $(findstring address,$(SANITIZE)),-DM3_SANITIZED) -c -o $@ $<
$(BUILD)/tests/faults/program.o: $(BUILD)/once/cli/main.o
	@mkdir -p $(@D)
	$(OBJCOPY) --redefine-sym main=program_main $< $@
$(BUILD)/tests/fault_server: $(FAULT_OBJECTS) $(filter-out %/main.o,$(CLI_OBJECTS)) $(LIBRARY)
	$(CC) -fopenmp -rdynamic $(LDFLAGS) -Wl,--wrap=m3_cli_bench_rate,--wrap=m3_seconds,--wrap=posix_spawnp -o $@ $^ $(LDLIBS) -lgcc_s
fault-server: $(PROGRAM) $(BUILD)/tests/fault_server $(BUILD)/tests/plain_table.so

# FAULTS=run,compare: only these commands.
FAULTS ?=
faults: setup
	@$(MAKE) -s -j$$(nproc) BUILD=$(BUILD)/faults SANITIZE='-fsanitize=address -fno-omit-frame-pointer' fault-server
	@tests/faults/run.sh $(BUILD)/faults $(FAULTS)
	@[ -n '$(FAULTS)' ] || $(MAKE) -s faults-python

# A tenth of the commands, without the sanitizer.
faults-slice: setup
	@$(MAKE) -s -j$$(nproc) fault-server
	@tests/faults/run.sh $(BUILD) '[a-z]*' $(SLICE)
	@$(MAKE) -s faults-python SLICE=$(SLICE)

# What is written in Python.
faults-python: $(PYTHON)/ready
	@$(MAKE) -s -j$$(nproc) all
	@$(PYTHON)/bin/python tests/faults/python.py $(PROGRAM) $(SLICE)

# ---- tests of the CUDA sources on a CPU: tests/cuda/on_cpu replaces the device

CXX ?= g++
# `unroll` is a pragma of nvcc. Kernels copy 16 bytes at a time, whatever their type.
CXXFLAGS := -std=gnu++17 $(OPT) -g -ffp-contract=off -fno-strict-aliasing -fPIC -Wall -Wextra -Werror -Wno-unknown-pragmas
# A device multiplies and adds at once; the processor's instruction gives the same bits as libm, which takes longer.
CXXFLAGS += $(if $(shell grep -ow -m 1 fma /proc/cpuinfo 2>/dev/null),-mfma)
CXXFLAGS += -Itests/cuda/on_cpu -Itests/support -Itests/twins -Iref -MMD -MP $(SANITIZE)
ON_CPU := $(CUDA:ref/cuda/%.cu=$(BUILD)/tests/cuda/%.o) $(BUILD)/tests/cuda/launcher.o

$(BUILD)/tests/cuda/%.o: ref/cuda/%.cu
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -x c++ -c -o $@ $<
$(BUILD)/tests/cuda/launcher.o: tests/cuda/on_cpu/launcher.cc
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -c -o $@ $<

# Plug-ins for the program: for a device, no device, one with too little memory, one without room for all weights.
DEVICE_no_device := -DM3_FAKE_DEVICES=0
DEVICE_little_memory := -DM3_FAKE_DEVICE_BYTES=1000000
DEVICE_some_memory := -DM3_FAKE_DEVICE_BYTES=17100000
$(CUDA_DEVICES:%=$(BUILD)/tests/cuda/%.o): $(BUILD)/tests/cuda/%.o: tests/cuda/on_cpu/runtime.cc
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(DEVICE_$*) -c -o $@ $<
$(CUDA_DEVICES:%=$(BUILD)/tests/cuda_%.so): $(BUILD)/tests/cuda_%.so: $(BUILD)/tests/cuda/%.o $(ON_CPU)
	$(CXX) $(LDFLAGS) -shared -o $@ $^

# The operator tests, with the kernels instead of the reference.
AS_CUDA := -DM3_TESTS_CUDA -Dm3_engine_f32=m3_engine_cuda -Dm3_ctx_init=m3_ctx_init_cuda -Dm3_ctx_free=m3_ctx_free_cuda
$(BUILD)/tests/cuda_engine.o: tests/cuda/engine.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -c -o $@ $<
$(CUDA_OPERATORS:%=$(BUILD)/tests/test_%_cuda): $(BUILD)/tests/test_%_cuda: test_%.c $(BUILD)/tests/harness.o \
		$(BUILD)/tests/cuda_engine.o $(BUILD)/tests/cuda/on_cpu.o $(ON_CPU) | $(TEST_LIBRARY)
	$(CC) $(TEST_CFLAGS) $(AS_CUDA) $(LDFLAGS) -o $@ $(filter %.c %.o %.a,$^) $(TEST_LDLIBS) -lstdc++
$(CUDA_UNITS:%=$(BUILD)/tests/test_%): $(BUILD)/tests/test_%: test_%.cc $(BUILD)/tests/harness.o $(BUILD)/tests/cuda/on_cpu.o \
		$(BUILD)/tests/cuda/launcher.o
	$(CXX) $(CXXFLAGS) $(shell pkg-config --cflags check) $(LDFLAGS) -o $@ $(filter %.cc %.o,$^) \
		$(shell pkg-config --libs check)

# This one has a small device.
$(BUILD)/tests/test_cuda_memory: test_cuda_memory.cc $(BUILD)/tests/harness.o $(addprefix $(BUILD)/tests/cuda/,some_memory.o \
		launcher.o memory.o linear.o linear_bf16.o linear_few.o) | $(TEST_LIBRARY)
	$(CXX) $(CXXFLAGS) $(shell pkg-config --cflags check) $(LDFLAGS) -o $@ $(filter %.cc %.o,$^) $(TEST_LDLIBS)

# The operator table of the kernels, behind the same harness.
INSIDE_refused_cuda = $(BUILD)/tests/cuda_engine.o $(BUILD)/tests/cuda/on_cpu.o $(ON_CPU)
LIBS_refused_cuda := -lstdc++

# This one calls the kernels themselves, on a device too.
$(BUILD)/tests/test_kernels: $(filter-out %/table.o %/memory.o %/launcher.o,$(ON_CPU))

# The benchmark of the kernels, only to check that it runs.
$(BUILD)/tests/cuda/cuda_bench.o: scripts/cuda/cuda_bench.cu
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -x c++ -c -o $@ $<
$(BUILD)/tests/cuda_bench: $(BUILD)/tests/cuda/cuda_bench.o $(BUILD)/tests/cuda/on_cpu.o \
		$(filter-out %/table.o %/memory.o,$(ON_CPU))
	$(CXX) $(LDFLAGS) -o $@ $^

# ---- the operator tests on a device: linked by nvcc, which finds the runtime

.PHONY: device-tests
device-tests: $(CUDA_OPERATORS:%=$(BUILD)/tests/test_%_device) $(BUILD)/tests/test_kernels_device
$(BUILD)/tests/test_kernels_device.o: tests/cuda/test_kernels.cc
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O2 -Iref -Itests/support -x cu -c -o $@ $<
$(BUILD)/tests/test_kernels_device: $(BUILD)/tests/test_kernels_device.o $(BUILD)/tests/harness.o $(CUDA_KERNELS:ref/cuda/%.cu=$(BUILD)/cuda/%.o)
	$(NVCC) -cudart static -o $@ $^ $(shell pkg-config --libs check)
$(CUDA_OPERATORS:%=$(BUILD)/tests/test_%_device.o): $(BUILD)/tests/test_%_device.o: test_%.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) $(AS_CUDA) -c -o $@ $<
$(CUDA_OPERATORS:%=$(BUILD)/tests/test_%_device): $(BUILD)/tests/test_%_device: $(BUILD)/tests/test_%_device.o \
		$(BUILD)/tests/harness.o $(BUILD)/tests/cuda_engine.o $(CUDA:ref/cuda/%.cu=$(BUILD)/cuda/%.o) | $(TEST_LIBRARY)
	$(NVCC) -cudart static -Xcompiler -fopenmp -Xlinker -rpath='$$ORIGIN/..' -o $@ $^ $(TEST_LIBRARY) $(shell pkg-config --libs check) $(LDLIBS)

# ---- for development

# The commands that make would run, as JSON.
compile-commands: setup
	@$(MAKE) -sBn all test-programs BUILD=$(BUILD) | scripts/make/compile_commands.sh >compile_commands.json

documents: all
	@scripts/make/documents_page.sh $(abspath $(PROGRAM)) >$(BUILD)/documents.md && cp $(BUILD)/documents.md golden/documents/README.md

index:
	@sed '/^## 18\. Index/q' SPEC.md >$(BUILD)/spec.md && echo >>$(BUILD)/spec.md && awk -f scripts/make/spec_index.awk \
		scripts/make/spec_index.tsv SPEC.md ref/oracle/VERDICTS.md >>$(BUILD)/spec.md && cp $(BUILD)/spec.md SPEC.md

FORMAT := $(BUILD)/format
# The formatter moves comments of this header out of their columns.
FORMATTED := $(filter-out ref/model/taps.h,$(shell find ref tests -name '*.[ch]'))
$(FORMAT)/ready: scripts/requirements-format.txt
	@scripts/venv.sh $(FORMAT) $<
	@touch $@

format: $(FORMAT)/ready
	@$(FORMAT)/bin/clang-format -i $(FORMATTED)

format-check: $(FORMAT)/ready
	@$(FORMAT)/bin/clang-format --dry-run --Werror $(FORMATTED)

# What takes long is cut into ten slices, 0 to 9; CI runs one, chosen by the number of commits. Without SLICE: all.
SLICE ?=

# ---- tests of every kind. Tools that set-up does not install are named by the scripts, with status 69

# ONLY=units: the tests in C that do not start the program, each operator with one body. Those that try every known
# mistake run hundreds of passes, of code that the others run too.
ONLY ?=
MANY_PASSES := op_mistakes named_mistakes known_bugs blame
WITH_PROGRAM := $(patsubst test_%.c,$(BUILD)/tests/test_%,$(notdir $(shell grep -l '"program.h"' $(TEST_SOURCES))))
UNIT_TESTS := $(filter-out $(WITH_PROGRAM) %_cuda \
		$(CUDA_UNITS:%=$(BUILD)/tests/test_%) %/test_cuda_memory $(MANY_PASSES:%=$(BUILD)/tests/test_%),$(TESTS))
QUICK_TESTS := $(filter-out $(SLOW_TESTS),$(UNIT_TESTS))
.PHONY: quick-tests unit-tests tsan valgrind analyze coverage
quick-tests: $(PROGRAM) $(QUICK_TESTS)
	@BUILD=$(BUILD) CC='$(CC)' tests/run.sh $(QUICK_TESTS)
# A slice is every third of them.
ifneq ($(SLICE),)
UNIT_TESTS := $(shell echo $(sort $(UNIT_TESTS)) | tr ' ' '\n' | awk 'NR % 3 == $(SLICE) % 3')
endif
unit-tests: $(PROGRAM) $(UNIT_TESTS)
	@BUILD=$(BUILD) CC='$(CC)' tests/run.sh $(UNIT_TESTS)

# With gcc: under clang's leak sanitizer libomp leaks what it keeps for its threads, and Python needs a sanitizer that can
# be loaded before it.
asan: setup
	@$(MAKE) -s -j$$(nproc) BUILD=$(BUILD)/asan SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all' \
		$(if $(filter units,$(ONLY)),unit-tests,tests)

tsan: setup
	@scripts/checks/tsan.sh $(BUILD)/tsan

valgrind: setup
	@$(MAKE) -s -j$$(nproc) all $(BUILD)/tests/plain_table.so
	@scripts/checks/valgrind.sh $(BUILD)

# TOOLS: some of gcc,clang-tidy,cppcheck. FILES: a pattern.
TOOLS ?= gcc,clang-tidy,cppcheck
FILES ?= ref/*
analyze: setup
	@mkdir -p $(BUILD)
	@$(MAKE) -sBn all BUILD=$(BUILD) CC=gcc | scripts/make/compile_commands.sh >$(BUILD)/commands.json
	@python3 scripts/analysis/analyze.py $(BUILD)/commands.json --tools $(TOOLS) --files '$(FILES)'

# FAULTS=run,compare: of tests/faults only these commands; FAULTS=none: the tests alone.
coverage: setup
	@FAULTS='$(FAULTS)' scripts/checks/line_coverage.sh $(BUILD)/coverage

# Commands that write are killed at random moments: COUNT of them. What they leave is looked at.
COUNT ?= 1000
kills: setup $(PYTHON)/ready
	@$(MAKE) -s -j$$(nproc) all
	@$(PYTHON)/bin/python tests/faults/kills.py $(PROGRAM) $(COUNT)

aarch64-bits:
	@scripts/checks/aarch64.sh $(BUILD)/aarch64

bits: setup
	@scripts/checks/bits.sh $(BUILD)/bits $(SLICE)

# CI runs a tenth of these (.ci/run). Each begins whatever became of the others; the status says whether one failed.
NIGHTLY := bits format-check test asan fuzz faults kills tsan valgrind analyze no-false-alarms golden-check power engines
.PHONY: nightly
nightly: setup $(VENV)/ready
	@M3_SLICE=all $(MAKE) -k CHECK=1 $(NIGHTLY)

# ---- goldens: made by the public PyTorch code, in a separate virtual environment

$(VENV)/ready: scripts/requirements-golden.txt
	@scripts/venv.sh $(VENV) $<
	@touch $@

golden: $(VENV)/ready
	$(VENV)/bin/python scripts/golden/make.py

golden-check: $(VENV)/ready
	$(VENV)/bin/python scripts/golden/check.py
	$(VENV)/bin/python scripts/candidates.py --check

# Random models against the public code.
no-false-alarms: setup $(VENV)/ready
	@$(MAKE) -s -j$$(nproc) all
	$(VENV)/bin/python scripts/no_false_alarms.py $(PROGRAM) $(BUILD)/no_false_alarms $(SLICE:%=--slice %)

# Which known mistakes the judges see. CHECK=1 compares a part of the page with the page, as CI does.
POWER_PAGE := ref/oracle/POWER.md
POWER_WHOLE := --worlds tiny,mtp,mxfp8,far,local,two --profiles bf16,fp8 --write
POWER_PART := --worlds tiny --profiles bf16 --mistakes 'act.*,moe.*' --check
CHECK ?=
answer-power: setup $(VENV)/ready
	@$(MAKE) -s -j$$(nproc) all $(BUILD)/tests/answer_power
	$(VENV)/bin/python scripts/answer_power.py $(BUILD) $(BUILD)/answer_power --public --write ref/oracle/judge/server/POWER.md

power: setup $(VENV)/ready
	@$(MAKE) -s -j$$(nproc) all $(BUILD)/tests/mistaken_dumps
	$(VENV)/bin/python scripts/power.py $(BUILD) $(BUILD)/power $(if $(CHECK),$(POWER_PART),$(POWER_WHOLE)) $(POWER_PAGE)
	$(VENV)/bin/python scripts/quantised_experts.py $(PROGRAM) $(BUILD)/power $(if $(CHECK),--models 0:1 --seeds 0:1,--write $(POWER_PAGE))

# Public engines, each in a virtual environment of its own.
ENGINE ?=
MISTAKES ?= 1
engines: setup $(PYTHON)/ready
	@$(MAKE) -s -j$$(nproc) all
	$(PYTHON)/bin/python scripts/engines/table.py --program $(PROGRAM) $(if $(filter 0,$(MISTAKES)),--no-mistakes) $(ENGINE)

# FILE: where the figures go.
FILE ?= $(BUILD)/bench.json
bench: setup
	@$(MAKE) -s -j$$(nproc) all
	@python3 scripts/bench/bench.py $(BUILD) --out $(FILE)

bench-torch: setup $(VENV)/ready
	@$(MAKE) -s -j$$(nproc) all
	@python3 scripts/bench/bench.py $(BUILD) --out $(FILE) --torch

bench-large: setup
	@$(MAKE) -s -j$$(nproc) all
	@scripts/bench/bench_large.sh $(BUILD) $(EXPERTS)

bench-readme:
	@python3 scripts/bench/bench.py $(BUILD) --readme scripts/bench/bench.json

# ---- installation

# Manual pages, and completions for shells: made from the help texts, and from the table of options that they agree with.
DOCUMENTS := $(BUILD)/documents
$(DOCUMENTS)/ready: $(PROGRAM) ref/cli/README.md scripts/make/man_page.awk scripts/make/completion.awk scripts/make/shell_documents.sh
	@scripts/make/shell_documents.sh $(PROGRAM) $(DOCUMENTS) && touch $@

# What a program compiles with: m3ref.h, a plug-in's ops.h, and what they include.
$(BUILD)/m3ref.pc: scripts/make/m3ref.pc.in Makefile
	@sed -e 's,@PREFIX@,$(PREFIX),; s,@LIBDIR@,$(LIBDIR),; s,@VERSION@,$(VERSION),' \
		-e 's,@PACKAGES@,$(filter-out openblas,$(PACKAGES)),; s,@BLAS@,$(shell pkg-config --libs openblas),' $< >$@
VERSION := $(shell sed -n 's/.*"m3ref \(.*\)"/\1/p' ref/base/version.h)
export DESTDIR PREFIX LIBDIR SONAME
.PHONY: uninstall $(BUILD)/m3ref.pc
install: all $(DOCUMENTS)/ready $(BUILD)/m3ref.pc
	@$(call headers,ref/m3ref.h ref/ops/ops.h ref/ops/outside.h) | scripts/make/install.sh $(BUILD)

uninstall:
	@scripts/make/install.sh --remove

# For machines without compilers, in build/wheel.
WHEEL_TOOLS := $(BUILD)/wheel-tools
$(WHEEL_TOOLS)/ready: scripts/requirements-wheel.txt
	@scripts/venv.sh $(WHEEL_TOOLS) $<
	@touch $@
.PHONY: wheel
wheel: all $(WHEEL_TOOLS)/ready
	@M3REF_BUILD=$(abspath $(BUILD)) PATH="$(abspath $(WHEEL_TOOLS))/bin:$$PATH" \
		$(WHEEL_TOOLS)/bin/python scripts/make/wheel.py $(BUILD) $(BUILD)/wheel

.PHONY: clean-root
clean-root: wheel
	@scripts/checks/clean_root.sh $(BUILD)

clean:
	rm -rf $(BUILD)

# Not those of `make clean-root`, a whole system.
-include $(shell find $(BUILD) -path $(BUILD)/root -prune -o -name '*.d' -print 2>/dev/null)
