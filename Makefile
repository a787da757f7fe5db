# torchnative: build, test and run. `make help` lists the targets.
#
# What the machine offers (compiler, libraries) is looked up once by scripts/configure.sh and kept in $(BUILD)/config.mk,
# so that a later call runs no probe at all. A library that goes away, another compiler or other flags make it again.

VERSION   := 0.1.0
SOVERSION := 0

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

BUILD  ?= build$(if $(findstring clang,$(CC)),/clang)
PREFIX ?= /usr/local
VENV   := .venv
PY     := $(VENV)/bin/python
SAN    ?=
WERROR ?= -Werror
Q      := $(if $(V),,@)

# ---- what the machine offers ----------------------------------------------------------------------------------------

# These goals either need no compiler or call make again for a flavour of their own.
PLAIN_GOALS := help clean deps deps-dev venv asan tsan lint check-includes fuzz arm64
# These promise to work on a machine that has nothing yet: they install what is missing, first of all.
SETUP_GOALS := test run bench python pytest suite wheel
TEST_GOALS  := test tests unit sim check bench

ifneq ($(if $(MAKECMDGOALS),$(filter-out $(PLAIN_GOALS),$(MAKECMDGOALS)),all),)
CONFIG_KEY := $(CC) $(SAN) $(WERROR) $(CFLAGS) $(CPPFLAGS) $(LDFLAGS)
include $(BUILD)/config.mk
ifneq ($(strip $(CONFIG_KEY)),$(strip $(CONFIGURED_KEY)))
$(BUILD)/config.mk: FORCE
else ifeq ($(CHECK_LIBS)$(MAKE_RESTARTS),)
# Check was not there last time, and only the tests need it.
$(BUILD)/config.mk: $(if $(filter $(TEST_GOALS),$(MAKECMDGOALS)),FORCE)
endif
$(CONFIGURED_FILES):
endif

$(BUILD)/config.mk: scripts/configure.sh $(CONFIGURED_FILES) $(if $(filter $(SETUP_GOALS),$(MAKECMDGOALS)),| deps)
	@mkdir -p $(@D)
	@CC='$(CC)' CONFIG_KEY='$(CONFIG_KEY)' sh scripts/configure.sh >$@.tmp && mv $@.tmp $@

# ---- flags ----------------------------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes \
        -Wold-style-definition -Wformat=2 -Wvla -Wundef -Wcast-qual -Wpointer-arith -Wwrite-strings \
        -Wdouble-promotion -Wnull-dereference -Wimplicit-fallthrough $(WERROR)

ifeq ($(SAN),)
OPT   := -O2 -g -D_FORTIFY_SOURCE=2 -fstack-protector-strong
HARD  := -Wl,-z,relro,-z,now,-z,noexecstack
else
# A sanitiser's own branches make the flow warnings guess; the plain builds are the ones that hold them.
OPT   := -O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all
WARN  += -Wno-null-dereference -Wno-maybe-uninitialized $(if $(findstring clang,$(CC)),-Wno-unknown-warning-option)
HARD  := -fsanitize=$(SAN)
endif

TN_CPPFLAGS := -I. -D_GNU_SOURCE -DTN_VERSION='"$(VERSION)"' $(LIB_CPPFLAGS)
BANNED      := -include core/banned.h
TN_CFLAGS   := -std=c11 $(OPT) -fPIC -fvisibility=hidden -pthread $(WARN)
TN_LDFLAGS  := -pthread $(HARD) -Wl,--as-needed
COMPILE      = $(CC) $(TN_CPPFLAGS) $(BANNED) $(CPPFLAGS) $(TN_CFLAGS) $(CFLAGS) $(FILE_FLAGS) -MMD -MP -c $< -o $@

# Kernels must give the same bits whatever the compiler would like to fuse, so contraction is off in all of them, and each
# instruction set has a file of its own: only what runs after the CPU was asked is compiled for it.
AVX2   := $(if $(filter x86_64,$(ARCH)),-mavx2 -mf16c)
AVX512 := $(if $(filter x86_64,$(ARCH)),-mavx512f -mavx512bw -mavx512dq -mavx512vl -mf16c -mprefer-vector-width=512)
$(BUILD)/obj/kernels/%.o: FILE_FLAGS = -ffp-contract=off
$(BUILD)/obj/kernels/simd_baseline.o: FILE_FLAGS = -O3 -ffp-contract=off
$(BUILD)/obj/kernels/simd_avx2.o: FILE_FLAGS = -O3 -ffp-contract=off $(AVX2)
$(BUILD)/obj/kernels/simd_avx512.o: FILE_FLAGS = -O3 -ffp-contract=off $(AVX512)
$(BUILD)/obj/kernels/simd_scalar.o: FILE_FLAGS = -O1 -fno-tree-vectorize -ffp-contract=off

# ---- what is there --------------------------------------------------------------------------------------------------

LIB_SRC  := $(wildcard core/*.c kernels/*.c privacy/*.c transport/*.c dist/*.c fed/*.c fed/net/*.c)
MAINS    := $(wildcard server/main_*.c)
SRV_SRC  := $(filter-out $(MAINS),$(wildcard server/*.c))
PY_SRC   := $(wildcard python/*.c)
SUP_SRC  := $(wildcard tests/support/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
SIM_SRC  := $(wildcard tests/sim/*.c)
BENCH_SRC := $(wildcard tests/bench/*.c)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
HEADERS  := $(filter-out core/banned.h core/internal.h,$(wildcard core/*.h)) \
            $(wildcard $(foreach m,kernels privacy transport dist fed fed/net,$(m)/$(notdir $(m)).h) privacy/dp.h)

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
exe = $(patsubst %.c,$(BUILD)/$(1)/%,$(notdir $(2)))

LIB_A  := $(BUILD)/lib/libtorchnative.a
LIB_SO := $(BUILD)/lib/libtorchnative.so
SUP_A  := $(if $(SUP_SRC),$(BUILD)/lib/libtestsupport.a)
BINS   := $(patsubst server/main_%.c,$(BUILD)/bin/torchnative-%,$(MAINS))
UNITS  := $(call exe,tests,$(UNIT_SRC))
SIMS   := $(call exe,tests,$(filter tests/sim/test_%,$(SIM_SRC)))
SIM_HELPERS := $(call exe,tests,$(filter-out tests/sim/test_%,$(SIM_SRC)))
BENCHES := $(call exe,bench,$(BENCH_SRC))
FUZZERS := $(call exe,fuzz,$(FUZZ_SRC))
MODULE := python/torchnative/_tn.abi3.so

.PHONY: all
all: $(LIB_A) $(LIB_SO) $(BINS)  ## the libraries and programs in $(BUILD)/, C only (the default)

# ---- rules ----------------------------------------------------------------------------------------------------------

$(BUILD)/obj/%.o: %.c $(BUILD)/config.mk Makefile
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(COMPILE)

$(LIB_A): $(call obj,$(LIB_SRC))
$(SUP_A): $(call obj,$(SUP_SRC))
$(LIB_A) $(SUP_A):
	@mkdir -p $(@D)
	@echo "  AR    $@"
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(LIB_SO): $(call obj,$(LIB_SRC))
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) -shared -Wl,-soname,libtorchnative.so.$(SOVERSION) $(if $(SAN),,-Wl,-z,defs) $(TN_LDFLAGS) $(LDFLAGS) \
	    $^ $(LIBS) -o $@ && ln -sf libtorchnative.so $@.$(SOVERSION)

LINK = mkdir -p $(@D) && echo "  LD    $@" && $(CC) $(TN_LDFLAGS) $(LDFLAGS) $(filter %.o %.a,$^)

$(BINS): $(BUILD)/bin/torchnative-%: $(BUILD)/obj/server/main_%.o $(call obj,$(SRV_SRC)) $(LIB_A)
	@$(LINK) $(LIBS) -o $@

# Every test program is one file; programs that a simulation starts lie beside it, so that it finds them by its own path.
$(UNITS): $(BUILD)/tests/%: $(BUILD)/obj/tests/unit/%.o
$(SIMS) $(SIM_HELPERS): $(BUILD)/tests/%: $(BUILD)/obj/tests/sim/%.o
$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o
$(UNITS) $(SIMS) $(SIM_HELPERS) $(BENCHES): $(SUP_A) $(LIB_A)
	$(if $(CHECK_LIBS),,$(error Check is missing: run `make deps` (package check)))
	@$(LINK) $(SUP_A) $(LIB_A) $(CHECK_LIBS) $(LIBS) -o $@

# One fuzzer a parser, seeded from tests/fuzz/corpus/NAME. What it learns stays in build/fuzz/corpus, what it breaks in
# build/fuzz/found: a file from there that shows a fault belongs into the seeds.
$(FUZZERS): $(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(LIB_A)
	@$(LINK) -fsanitize=fuzzer $(LIBS) -o $@

ALL_SRC := $(LIB_SRC) $(MAINS) $(SRV_SRC) $(SUP_SRC) $(UNIT_SRC) $(SIM_SRC) $(BENCH_SRC) $(FUZZ_SRC)
-include $(patsubst %.o,%.d,$(call obj,$(ALL_SRC) $(PY_SRC)))

.PHONY: FORCE
FORCE:

# ---- set-up ---------------------------------------------------------------------------------------------------------

.PHONY: deps deps-dev
deps:  ## installs the Debian packages that are missing (as root)
	@sh scripts/deps.sh
deps-dev:  ## the same, and what `make lint` and `make fuzz` need
	@sh scripts/deps.sh --dev

# A prerequisite that is made anew when the interpreter behind the link has gone.
$(PY): | deps
	@. scripts/python.sh && p=$$(find_python) && [ -n "$$p" ] || \
	    { echo "venv: no Python >= 3.11 with venv and headers: run \`make deps\` as root" >&2; exit 2; }; \
	echo "  VENV  $(VENV) ($$p)"; "$$p" -m venv --clear $(VENV)

PIP = $(PY) -m pip --disable-pip-version-check -qq

$(VENV)/.requirements: tests/requirements.txt $(PY)
	@echo "  PIP   $< (torch and the test tools; takes minutes the first time)"
	$(Q)$(PIP) install -r $< && touch $@

.PHONY: venv
venv: $(VENV)/.requirements  ## .venv with torch and the pinned test tools

# ---- Python ---------------------------------------------------------------------------------------------------------

PY_CFLAGS = -DPy_LIMITED_API=0x030b0000 \
    -isystem "$$($(PY) -c 'import sysconfig; print(sysconfig.get_paths()["include"])')"
$(BUILD)/obj/python/%.o: FILE_FLAGS = $(PY_CFLAGS)
$(call obj,$(PY_SRC)): | $(VENV)/.requirements

# One module for every CPython from 3.11 on. The library is linked into it and stays hidden: only PyInit shows.
$(MODULE): $(call obj,$(PY_SRC)) $(LIB_A)
	$(if $(PY_SRC),,@echo "python: there is no python/*.c to build the module from" >&2; exit 2)
	@mkdir -p $(@D)
	@$(LINK) -shared -Wl,--exclude-libs,ALL $(LIBS) -o $@

# Installed as a link to python/, so that torch finds the entry point and an edit needs no second call.
$(VENV)/.torchnative: python/pyproject.toml $(VENV)/.requirements
	@echo "  PIP   -e python"
	$(Q)$(PIP) install --no-build-isolation --no-deps -e python && touch $@

.PHONY: python
python: $(MODULE) $(VENV)/.torchnative  ## the Python module, installed into .venv

.PHONY: wheel
wheel: $(MODULE) $(VENV)/.requirements  ## an abi3 wheel in $(BUILD)/wheel/
	$(Q)sh scripts/wheel.sh $(PY) $(BUILD)

# ---- tests ----------------------------------------------------------------------------------------------------------

RUN_TESTS := sh scripts/run-tests.sh

.PHONY: tests unit sim check pytest suite test
tests: $(UNITS) $(SIMS) $(SIM_HELPERS) $(BENCHES)  ## builds the C tests and benches without running them
unit: $(UNITS)  ## runs the Check programs of tests/unit
	@$(RUN_TESTS) $(TEST_ARGS) $(UNITS)
sim: $(SIMS) $(SIM_HELPERS) $(BINS)  ## runs the multi-process simulations of tests/sim
	@$(RUN_TESTS) $(TEST_ARGS) $(SIMS)
check: $(UNITS) $(SIMS) $(SIM_HELPERS) $(BINS)  ## unit and sim
	@$(RUN_TESTS) $(TEST_ARGS) $(UNITS) $(SIMS)
pytest: all python  ## runs tests/python
	@$(RUN_TESTS) --pytest $(PY)
suite: python  ## PyTorch's own tests of process groups, on gloo and on tn side by side
	@$(PY) tests/python/suite.py $(ARGS)
test: all tests python  ## all set-up, then every fast test
	@$(RUN_TESTS) --pytest $(PY) $(UNITS) $(SIMS)

.PHONY: asan tsan
SAN_ENV := UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1 \
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1$(addprefix :suppressions=$(CURDIR)/,$(wildcard tests/tsan.supp))
asan:  ## unit and sim under AddressSanitizer and UBSan
	@$(SAN_ENV) $(MAKE) --no-print-directory BUILD=build/asan SAN=address,undefined check
# The kernels are arithmetic without a thread of their own, and slow here.
tsan:  ## unit and sim under ThreadSanitizer
	@$(SAN_ENV) $(MAKE) --no-print-directory BUILD=build/tsan SAN=thread TEST_ARGS="--skip kernel" check

FUZZ_SECONDS ?= 30
.PHONY: fuzz fuzz-run
fuzz: $(if $(FUZZ_SRC),deps-dev)  ## each fuzzer for FUZZ_SECONDS (30)
	@$(if $(FUZZ_SRC),$(MAKE) --no-print-directory CC=clang BUILD=build/fuzz SAN=fuzzer-no-link$(comma)address$(comma)undefined fuzz-run,\
	    echo "fuzz: not built yet: there is no tests/fuzz/fuzz_*.c" >&2; exit 2)
fuzz-run: $(FUZZERS)
	@for f in $^; do n=$${f##*/fuzz_}; seeds=tests/fuzz/corpus/$$n; [ -d $$seeds ] || seeds=; \
	    mkdir -p $(BUILD)/corpus/$$n $(BUILD)/found; echo "  FUZZ  $$n"; \
	    $$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
	        -print_funcs=0 -artifact_prefix=$(BUILD)/found/$$n- $(BUILD)/corpus/$$n $$seeds || exit 1; done
comma := ,

# ---- checks without running -----------------------------------------------------------------------------------------

.PHONY: lint check-includes check-headers check-symbols tidy ruff
lint: deps-dev  ## every static check, and the build by clang
	@grep -q '^version = "$(VERSION)"' python/pyproject.toml || \
	    { echo "lint: python/pyproject.toml and the Makefile ($(VERSION)) differ in the version" >&2; exit 1; }
	@$(MAKE) --no-print-directory check-includes
	@$(MAKE) --no-print-directory ruff check-headers check-symbols tidy
	@$(MAKE) --no-print-directory CC=clang all tests
check-includes:  ## who may include whom
	@sh scripts/check-includes.sh --self-test && sh scripts/check-includes.sh
check-headers:  ## every header compiles on its own
	@for h in $(wildcard $(foreach m,core kernels privacy transport dist fed fed/net server,$(m)/*.h)); do \
	    echo "#include \"$$h\"" | $(CC) $(TN_CPPFLAGS) $(CPPFLAGS) $(TN_CFLAGS) -fsyntax-only -xc - || \
	    { echo "check-headers: $$h does not compile on its own" >&2; exit 1; }; done; echo "check-headers: ok"
check-symbols: $(LIB_SO) $(LIB_A)  ## what the library exports is what its headers promise
	@sh scripts/check-symbols.sh $(LIB_SO) $(LIB_A) $(HEADERS)
# Without the header of banned functions in front, so that a file which includes less than it uses is found here.
TIDY_SRC := $(LIB_SRC) $(MAINS) $(SRV_SRC) $(PY_SRC)
tidy: $(TIDY_SRC:%.c=$(BUILD)/tidy/%.ok)  ## clang-tidy
	@echo "tidy: ok"
$(BUILD)/tidy/%.ok: %.c $(BUILD)/obj/%.o .clang-tidy scripts/tidy.h
	@mkdir -p $(@D)
	@echo "  TIDY  $<"
	@clang-tidy --quiet $< -- $(TN_CPPFLAGS) $(CPPFLAGS) $(FILE_FLAGS) -std=c11 \
	    $(if $(filter core/error.c,$<),,-include scripts/tidy.h) 2>$@.log || \
	    { grep -v 'warnings generated' $@.log; exit 1; }
	@touch $@
$(BUILD)/tidy/python/%.ok: FILE_FLAGS = $(PY_CFLAGS)
$(BUILD)/tidy/kernels/simd_avx2.ok: FILE_FLAGS = $(AVX2)
$(BUILD)/tidy/kernels/simd_avx512.ok: FILE_FLAGS = $(AVX512)
ruff: $(VENV)/.requirements  ## mistakes in Python
	@$(PY) -m ruff check --quiet python tests examples && echo "ruff: ok"

# ---- the rest -------------------------------------------------------------------------------------------------------

.PHONY: run bench arm64 install
run: all python  ## the main job: a federation on real data (MODE=collective: over torchrun; DP=1 or DP=SPEC: with noise)
	@$(PY) examples/digits/run.py $(if $(MODE),--mode $(MODE)) $(if $(DP),--dp $(filter-out 1,$(DP))) $(ARGS)

.venv-flower/.requirements: tests/requirements-flower.txt $(PY)
	@echo "  VENV  .venv-flower ($<)"
	$(Q)[ -x .venv-flower/bin/python ] || $(PY) -m venv --clear .venv-flower; .venv-flower/bin/python -m pip --disable-pip-version-check -qq install -r $< && touch $@
bench: all python $(BENCHES) .venv-flower/.requirements  ## the side-by-side tables
	@$(PY) tests/bench/run.py $(ARGS)

arm64:  ## the build for aarch64
	@echo "arm64: not built yet" >&2; exit 2

INC := $(DESTDIR)$(PREFIX)/include/torchnative
install: all  ## PREFIX=/usr/local, DESTDIR=
	@[ -n "$(BINS)" ] || { echo "install: the programs are not there yet" >&2; exit 2; }
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(INC)
	install $(BINS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(LIB_A) $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(LIB_SO) $(DESTDIR)$(PREFIX)/lib/libtorchnative.so.$(VERSION)
	ln -sf libtorchnative.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libtorchnative.so.$(SOVERSION)
	ln -sf libtorchnative.so.$(SOVERSION) $(DESTDIR)$(PREFIX)/lib/libtorchnative.so
	@for h in $(HEADERS); do install -D -m 644 $$h $(INC)/$$h || exit 1; done
	@printf '%s\n' 'prefix=$(PREFIX)' 'Name: torchnative' 'Description: federated learning and torch.distributed in C' \
	    'Version: $(VERSION)' 'Cflags: -I$${prefix}/include/torchnative' 'Libs: -L$${prefix}/lib -ltorchnative' \
	    'Libs.private: $(LIBS) -pthread' >$(DESTDIR)$(PREFIX)/lib/pkgconfig/torchnative.pc

.PHONY: clean
clean:  ## removes build/ and the built module
	rm -rf build $(MODULE) python/build

.PHONY: help
help:  ## this list
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*  ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | sort | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'
