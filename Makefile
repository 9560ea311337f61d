#     make            builds target/release/ulpf
#     make demo       sqlite3 under gdb with a thousand watches (installs what is missing)
#     make check      formats, lints, some of the tests: within a minute where all is built (installs what is missing)
#     make test       everything that CI checks: 20 minutes on two processors (installs what is missing)
#     make nightly    the longer tests: other kernels, packages, GDB's suite, programs of Debian's archive, coverage-guided fuzzing, the oldest Rust (as root)
#     make gdb-suite  GDB's own testsuite on ulpf server, compared with gdbserver: LIST=short (some minutes), watch, server, core, all
#     make peers      other projects' tests of signals, system calls, threads and memory, alone and under ulpf (as root): COLLECTION=rr|libc-test|valgrind|ltp FROM=sources
#     make check-suite   Juliet's errors of the heap under ulpf check: FROM=folder-of-Juliet
#     make soak       random programs against an independent machine, for SECONDS=1800; a million changes of what watches follow; ten million accesses of a heap under ulpf check
#     make fuzz       throws hostile input at everything that reads some: each target for SECONDS=600, or TARGET=name
#     make bench      measures (best on a quiet machine), and writes docs/notes/measurements.md, benches/
#     make kernel-test   the kernel module's tests, in a simulated machine (a part of make test)
#                        KERNEL=newer: in the one of Debian's backports; KERNEL=debug: as kernel-debug
#     make kernel-debug  the same in a kernel with KASAN, lockdep and kmemleak, which it builds at first (20 minutes, 2 GB)
#     make kernel-bench  measures the module, and the stub with it, in instructions
#     make kernel-fuzz   random calls of its interface, CALLS=1000000
#     make sim        builds the simulated hardware (ulpf sim), which links Unicorn and so is GPL-2.0
#     make sim-tables  runs the papers' experiments on it, and writes docs/notes/measurements.md
#     make docs       the book (docs/), as HTML in target/book; checks all links
#     make picture    draws docs/top.svg out of a real run of ulpf top
#     make tarball    target/packages/ulpf-VERSION-x86_64-linux.tar.xz, which runs from wherever it is unpacked; debug information apart
#     make deb        target/packages/ulpf_VERSION_amd64.deb and libulpf-dev_VERSION_amd64.deb
#     make deb-all    these, ulpf-dkms_VERSION_all.deb (the kernel module) and ulpf-sim_VERSION_amd64.deb (the simulator)
#     make image      an image for containers, of the tarball: localhost/ulpf (with podman, docker or buildah)
#     make install    copies ulpf (and ulpf-sim, if it is built) to $(PREFIX)/bin, its manual pages and completions, and libulpf with its header, pkg-config file and manual pages

PREFIX ?= /usr/local
CARGO  ?= cargo

BUILD_PACKAGES := gcc libc6-dev make python3
DEMO_PACKAGES  := gdb sqlite3
# These two build Unicorn, the machine of the simulator and the oracle.
SIM_PACKAGES   := cmake libclang-dev
# To run the tests, and to check their Python (python3-pip fetches ruff).
PYTEST_PACKAGES := python3-pytest python3-pytest-xdist python3-pytest-timeout python3-jsonschema python3-pip
TEST_PACKAGES  := $(PYTEST_PACKAGES) g++ gdb gdbserver sqlite3 redis-tools procps tmux pkg-config xz-utils $(SIM_PACKAGES)
# GDB's own testsuite; its sources come by apt, too.
SUITE_PACKAGES := gdb gdbserver dejagnu expect gcc g++ dpkg-dev libc6-dbg util-linux
BENCH_PACKAGES := gdb gdbserver sqlite3 redis-tools
# To make packages.
PACKAGED_PACKAGES := musl-tools xz-utils
# Programs for comparison with ulpf, where available.
PEER_PACKAGES  := valgrind libquantum-dev
# The kernel module is built with the packaged headers, and booted in a simulator.
KERNEL_PACKAGES := linux-headers-cloud-amd64 qemu-system-x86 sparse kmod
# Build a kernel for debugging.
DEBUG_PACKAGES := flex bison bc libelf-dev
# Without these, some tests skip and say why.
EXTRA_PACKAGES := lldb-19 valgrind libpython3.11-testsuite git dwz debuginfod nginx-light zsh fish man-db golang-go musl-tools libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4 \
	clang libc++-dev libc++abi-dev user-mode-linux

build: need-build
	$(CARGO) build --release -p ulpf -p libulpf
	@$(MAKE) -s -C ulpf-lib/c stage
demo: need-demo need-build
	$(CARGO) build --release -p ulpf
	@$(MAKE) -s -C examples bin/bank
	@demo/run
test: need-test
	@tests/all
nightly: need-test
	@.ci/need $(SUITE_PACKAGES) $(PACKAGED_PACKAGES) $(DEBUG_PACKAGES)
	@tests/all --nightly $(STEPS)
check: need-check build examples
	@$(MAKE) -s -C tests/programs
	@tests/all --only format lint quick
LIST ?= short
gdb-suite: need-build
	@.ci/need $(SUITE_PACKAGES)
	@$(MAKE) build
	@tests/gdb-suite $(LIST)
check-suite: need-build build
	@tests/check-suite --from $(FROM)
peers: need-build build
	@tests/peers $(or $(COLLECTION),rr) $(if $(FROM),--from $(FROM))
SECONDS ?= 1800
soak: need-test build
	$(CARGO) build --release -q -p ulpf -p ulpf-oracle
	target/release/ulpf-oracle soak $(SECONDS) $(if $(SEED),--seed $(SEED))
	ULPF_MUTATIONS=1000000 tests/run command.test_following.Places.test_many
	@$(MAKE) -s -C tests/programs bin/heap_model bin/heap_model_new
	tests/heap-model --accesses 10000000 $(if $(SEED),--seed $(SEED))
fuzz: SECONDS = 600
fuzz: need-test
	@fuzz/run --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(TARGET)
bench: need-bench build
	@$(MAKE) -s -C ulpf-lib/c stage PROFILE=packaged
	$(CARGO) build --profile packaged -p ulpf
	$(CARGO) build --release -p ulpf-bench
	target/release/ulpf-bench --ulpf target/packaged/ulpf --write
kernel-test: need-kernel need-check
	@ULPF_KERNEL=$(KERNEL) tests/run kernel.
kernel-debug: need-kernel need-check
	@.ci/need $(DEBUG_PACKAGES)
	@.ci/kernel-debug
	@ULPF_KERNEL=debug tests/run kernel.
kernel-bench: need-kernel build
	@python3 tests/lib/vm.py --icount bench_module
	@cd tests && python3 -m lib.guest
CALLS ?= 1000000
kernel-fuzz: need-kernel
	@python3 tests/lib/vm.py --cpus 1 --limit 3600 --options ulpf.calls=$(CALLS) $(if $(SEED),--options ulpf.seed=$(SEED)) fuzz_calls
sim-tables: need-build
	@.ci/need $(SIM_PACKAGES)
	$(CARGO) run --release -p ulpf-sim-tables -- --write
sim: need-build
	@.ci/need $(SIM_PACKAGES)
	$(CARGO) build --release -p ulpf -p ulpf-sim-bridge
examples: need-build
	@$(MAKE) -s -C examples
docs:
	@docs/build
picture: need-test build examples
	@demo/picture
# Builds nothing: root (sudo) may have no Rust, and would leave its files in the tree.
install:
	@[ -x target/release/ulpf ] && [ -e target/libulpf/libulpf.a ] || { echo "make install: nothing is built yet; run make as yourself first" >&2; exit 1; }
	install -D target/release/ulpf $(DESTDIR)$(PREFIX)/bin/ulpf
	ln -sf ulpf $(DESTDIR)$(PREFIX)/bin/ulpf-gdb
	if [ -x target/release/ulpf-sim ]; then install -D target/release/ulpf-sim $(DESTDIR)$(PREFIX)/bin/ulpf-sim; fi
	target/release/ulpf pages $(DESTDIR)$(PREFIX)/share
	@$(MAKE) -s -C ulpf-lib/c install PREFIX=$(PREFIX)
# `release` is what is tested; `packaged` is the same, linked to be small and measured, and here with a C library of its
# own, so that it runs whichever one the system has.
STATIC := x86_64-unknown-linux-musl
packaged: need-build
	@.ci/need $(PACKAGED_PACKAGES)
	@[ -d "$$(rustc --print target-libdir --target $(STATIC))" ] || rustup target add $(STATIC)
	CC_x86_64_unknown_linux_musl=musl-gcc $(CARGO) build --profile packaged -p ulpf --target $(STATIC)
	@$(MAKE) -s -C ulpf-lib/c stage PROFILE=packaged
tarball: packaged
	@packaging/build tarball debug
ENGINE ?= $(firstword $(foreach tool,podman docker buildah,$(if $(shell command -v $(tool)),$(tool))))
image: tarball
	@[ "$(ENGINE)" ] || { echo "make image: there is no podman, docker or buildah here, which builds images" >&2; exit 1; }
	$(ENGINE) build --build-arg VERSION=$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml) -t ulpf -f packaging/Containerfile target/packages
deb: packaged
	@packaging/build deb
deb-all: deb sim
	@packaging/build dkms sim
clean:
	rm -rf target
	$(MAKE) -C examples clean
	$(MAKE) -C tests/programs clean

need-build:
	@.ci/need $(BUILD_PACKAGES)
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: see https://rustup.rs" >&2; exit 1; }
need-check: need-build
	@.ci/need $(PYTEST_PACKAGES)
need-demo: need-build
	@.ci/need $(DEMO_PACKAGES)
need-bench: need-build
	@.ci/need $(BENCH_PACKAGES)
	@.ci/need --optional $(PEER_PACKAGES)
need-kernel: need-build
	@.ci/need $(KERNEL_PACKAGES)
need-test: need-build
	@.ci/need $(TEST_PACKAGES)
	@.ci/need --optional $(EXTRA_PACKAGES)
	@.ci/need --optional $(KERNEL_PACKAGES)
	@.ci/lldb-14

.PHONY: build check demo docs test nightly gdb-suite check-suite peers soak fuzz bench kernel-test kernel-debug kernel-bench kernel-fuzz sim sim-tables examples picture packaged tarball image deb deb-all install clean need-build need-check need-demo need-bench need-kernel need-test
