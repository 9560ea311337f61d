# One file, one program: builds each of this folder into bin/. Of EXTRA, the Makefile that includes this says how.
CFLAGS   ?= -g -O0 -Wall -Wextra
CXXFLAGS ?= -g -O1 -std=c++17 -Wall -Wextra
BIN      := bin
C        := $(patsubst %.c,$(BIN)/%,$(filter-out $(NO_PROGRAMS),$(wildcard *.c)))
CXX_BINS := $(patsubst %.cc,$(BIN)/%,$(wildcard *.cc))
RUST     := $(patsubst %.rs,$(BIN)/%,$(wildcard *.rs))

all: $(C) $(CXX_BINS) $(RUST) $(addprefix $(BIN)/,$(EXTRA))

$(BIN):
	mkdir -p $@
$(BIN)/%: %.c | $(BIN)
	$(CC) $(CFLAGS) -pthread -o $@ $< -ldl
$(BIN)/%: %.cc | $(BIN)
	$(CXX) $(CXXFLAGS) -pthread -o $@ $<
$(BIN)/%: %.rs | $(BIN)
	+rustc --edition 2024 -g -C opt-level=1 -o $@ $<

clean:
	rm -rf $(BIN)
.PHONY: all clean
