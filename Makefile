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
PLAIN_GOALS := help clean distclean deps deps-dev venv asan tsan lint check-includes check-banned fuzz arm64
# These promise to work on a machine that has nothing yet: they install what is missing, first of all.
SETUP_GOALS := test run bench python pytest wheel

ifneq ($(if $(MAKECMDGOALS),$(filter-out $(PLAIN_GOALS),$(MAKECMDGOALS)),all),)
CONFIG_KEY := $(CC) $(SAN) $(WERROR) $(CFLAGS) $(CPPFLAGS) $(LDFLAGS)
include $(BUILD)/config.mk
ifneq ($(strip $(CONFIG_KEY)),$(strip $(CONFIGURED_KEY)))
$(BUILD)/config.mk: FORCE
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
COMPILE      = $(CC) $(TN_CPPFLAGS) $(BANNED) $(CPPFLAGS) $(TN_CFLAGS) $(CFLAGS) $(KERNEL_CFLAGS) -MMD -MP -c $< -o $@

# Kernels must give the same bits whatever the compiler would like to fuse, so contraction is off in all of them, and each
# instruction set has a file of its own: only what runs after the CPU was asked is compiled for it.
X86 := $(filter x86_64,$(ARCH))
$(BUILD)/obj/kernels/%.o: KERNEL_CFLAGS = -ffp-contract=off
$(BUILD)/obj/kernels/simd_baseline.o: KERNEL_CFLAGS = -O3 -ffp-contract=off
$(BUILD)/obj/kernels/simd_avx2.o: KERNEL_CFLAGS = -O3 -ffp-contract=off $(if $(X86),-mavx2 -mf16c)
$(BUILD)/obj/kernels/simd_avx512.o: KERNEL_CFLAGS = -O3 -ffp-contract=off \
    $(if $(X86),-mavx512f -mavx512bw -mavx512dq -mavx512vl -mf16c -mprefer-vector-width=512)
$(BUILD)/obj/kernels/simd_scalar.o: KERNEL_CFLAGS = -O1 -fno-tree-vectorize -ffp-contract=off

# ---- what is there --------------------------------------------------------------------------------------------------

LIB_SRC  := $(wildcard core/*.c kernels/*.c privacy/*.c transport/*.c dist/*.c fed/*.c fed/net/*.c)
MAINS    := $(wildcard server/main_*.c)
SRV_SRC  := $(filter-out $(MAINS),$(wildcard server/*.c))
PY_SRC   := $(wildcard python/*.c)
SUP_SRC  := $(wildcard tests/support/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
SIM_SRC  := $(wildcard tests/sim/*.c)
BENCH_SRC := $(wildcard tests/bench/*.c)
HEADERS  := $(filter-out core/banned.h,$(wildcard core/*.h)) \
            $(wildcard $(foreach m,kernels privacy transport dist fed fed/net,$(m)/$(notdir $(m)).h))

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
	    $^ $(LIB_LIBS) -o $@ && ln -sf libtorchnative.so $@.$(SOVERSION)

LINK = mkdir -p $(@D) && echo "  LD    $@" && $(CC) $(TN_LDFLAGS) $(LDFLAGS) $(filter %.o %.a,$^)

$(BINS): $(BUILD)/bin/torchnative-%: $(BUILD)/obj/server/main_%.o $(call obj,$(SRV_SRC)) $(LIB_A)
	@$(LINK) $(LIB_LIBS) $(SRV_LIBS) -o $@

# Every test program is one file; programs that a simulation starts lie beside it, so that it finds them by its own path.
$(UNITS): $(BUILD)/tests/%: $(BUILD)/obj/tests/unit/%.o
$(SIMS) $(SIM_HELPERS): $(BUILD)/tests/%: $(BUILD)/obj/tests/sim/%.o
$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o
$(UNITS) $(SIMS) $(SIM_HELPERS) $(BENCHES): $(SUP_A) $(LIB_A)
	$(if $(CHECK_LIBS),,$(error Check is missing: run `make deps` (package check)))
	@$(LINK) $(SUP_A) $(LIB_A) $(CHECK_LIBS) $(LIB_LIBS) $(SRV_LIBS) -o $@

-include $(patsubst %.o,%.d,$(call obj,$(LIB_SRC) $(MAINS) $(SRV_SRC) $(SUP_SRC) $(UNIT_SRC) $(SIM_SRC) $(BENCH_SRC) $(PY_SRC)))

.PHONY: FORCE
FORCE:

.PHONY: clean
clean:  ## removes build/ and the built module
	rm -rf build $(MODULE) python/build python/*.egg-info

.PHONY: help
help:  ## this list
	@sed -n 's/^\([a-z][a-z-]*\):.*  ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | sort | awk -F'\t' '{printf "  %-16s %s\n", $$1, $$2}'
