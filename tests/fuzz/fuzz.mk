# Fuzz targets (tests/fuzz/README.md): `make test` runs their kept inputs, `make fuzz` looks for new ones.
FUZZ_TARGETS := $(patsubst tests/fuzz/targets/%.c,%,$(wildcard tests/fuzz/targets/*.c))
FUZZ_SHARED := $(BUILD)/tests/fuzz/entry.o $(BUILD)/tests/fuzz/files.o $(BUILD)/tests/fuzz/world.o
TESTS += $(FUZZ_TARGETS:%=$(BUILD)/tests/fuzz_%)

$(BUILD)/tests/fuzz/%.o: tests/fuzz/%.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -Itests/fuzz -c -o $@ $<
$(FUZZ_TARGETS:%=$(BUILD)/tests/fuzz_%): $(BUILD)/tests/fuzz_%: $(BUILD)/tests/fuzz/targets/%.o $(FUZZ_SHARED) \
		$(BUILD)/tests/fuzz/replay.o $(BUILD)/tests/harness.o | $(TEST_LIBRARY)
	$(CC) -fopenmp $(LDFLAGS) -o $@ $^ $(TEST_LDLIBS)

# Only with clang. The mutator is not instrumented: what it does is not what the reader does.
FUZZ_MUTATOR := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/plain/%.o,$(wildcard tests/fuzz/mutate*.c))
$(BUILD)/tests/fuzz/plain/%.o: tests/fuzz/%.c
	@mkdir -p $(@D)
	$(CC) $(filter-out $(SANITIZE),$(CFLAGS)) -Itests/fuzz -c -o $@ $<
$(FUZZ_TARGETS:%=$(BUILD)/fuzzer_%): $(BUILD)/fuzzer_%: $(BUILD)/tests/fuzz/targets/%.o $(FUZZ_SHARED) $(FUZZ_MUTATOR) \
		| $(TEST_LIBRARY)
	$(CC) $(LDFLAGS) -fsanitize=fuzzer -fopenmp -o $@ $^ $(TEST_LIBRARY) -Wl,-rpath,'$$ORIGIN' $(LDLIBS)
.PHONY: fuzz fuzz-seeds

# FUZZ: targets, "compare,png"; SLICE: every tenth; FUZZ_SECONDS: for each of them, 0: only the lines that the kept inputs reach;
# FUZZ_TOTAL: for all of them together instead, at least 1 for each; FUZZ_SEED: the same inputs every time, from the kept
# ones alone.
FUZZ ?=
FUZZ_SEED ?=
FUZZ_SECONDS ?= 120
FUZZ_TOTAL ?=
comma := ,
FUZZ_SLICE = $(shell echo $(FUZZ_TARGETS) | tr ' ' '\n' | awk 'NR % 10 == $(SLICE)')
FUZZ_CHOSEN = $(or $(subst $(comma), ,$(FUZZ)),$(if $(SLICE),$(FUZZ_SLICE),$(FUZZ_TARGETS)))
FUZZ_SHARE = $(FUZZ_TOTAL)/$(words $(FUZZ_CHOSEN))
FUZZ_EACH = $(if $(FUZZ_TOTAL),$$(($(FUZZ_SHARE) > 0 ? $(FUZZ_SHARE) : 1)),$(FUZZ_SECONDS))
# Comparisons are not traced: the mutator knows the formats, and tracing makes arithmetic several times slower. Depths of
# the stack are not covered: they depend on where it begins, so that no seed would give the same inputs again.
FUZZ_SANITIZE := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
                 -fno-sanitize-coverage=trace-cmp,stack-depth -fprofile-instr-generate -fcoverage-mapping -Wno-pass-failed
# One build with clang's sanitizers.
SANITIZED := BUILD=$(BUILD)/sanitized CC=clang CXX=clang++ OPT=-O1 SANITIZE='$(FUZZ_SANITIZE)'
fuzz:
	@scripts/setup.sh tests fuzz
	@$(MAKE) -s -j$$(nproc) $(SANITIZED) $(FUZZ_CHOSEN:%=$(BUILD)/sanitized/fuzzer_%)
	@$(MAKE) -s -j$$(nproc) $(FUZZ_CHOSEN:%=$(BUILD)/tests/fuzz_%)
	@FUZZ_SEED=$(FUZZ_SEED) tests/fuzz/fuzz.sh $(BUILD)/sanitized $(BUILD) $(FUZZ_EACH) $(FUZZ_CHOSEN)

fuzz-seeds: all
	@python3 tests/fuzz/seeds.py $(PROGRAM) tests/fuzz/corpus
