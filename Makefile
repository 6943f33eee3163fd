# Each target sets up .venv by itself; a second call is instant.
PYTHON ?= python3
BIN := .venv/bin
# An editable install knows the modules that were there: another list of them is another set-up.
SETUP := .venv/.ready-$(shell find src -name '*.py' | sort | cksum | cut -d' ' -f1)
SOURCES := src tests tools benchmarks examples docs reproduction

.PHONY: notebooks peers fuzz-kernels setup demo test test-slow gpu-code check check-all lint types imports size docs reproduction bench native-test native-aarch64 native-avx512 dist wheel-test fuzz

setup: $(SETUP)

$(SETUP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@rm -f .venv/.ready* && touch $@

demo: $(SETUP)  ## train LEM on the FitzHugh-Nagumo system by the paper's protocol and show the result
	$(BIN)/lem train fitzhugh_nagumo/lem --figure

test: $(SETUP)  ## all tests but the slow ones
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not paper and not gpu_code"

test-slow: $(SETUP)
	$(BIN)/python -m pytest -q -n 2 -m "slow and not paper"

gpu-code: $(SETUP)  ## compile every Triton kernel for every card of its table; no GPU is needed
	$(BIN)/python -m pytest -q -n 2 -m gpu_code

lint: $(SETUP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(SETUP)
	$(BIN)/mypy

imports: $(SETUP)
	$(BIN)/lint-imports

size: $(SETUP)
	@$(BIN)/python tools/size.py

check: lint types imports size test  ## what must be green before every commit

docs: $(SETUP)  ## build the documentation into docs/_build/html
	@$(BIN)/python -c "import sphinx, furo, myst_parser, latex2mathml" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

notebooks: $(SETUP)  ## run the notebooks of examples/notebooks, and check that they are kept without outputs
	$(BIN)/python -m pytest -q tests/test_notebooks.py

reproduction: $(SETUP)  ## rewrite docs/reproduction.md, its figures and README's excerpt; ADD="RUN ..." takes runs in first
	$(BIN)/python -m reproduction $(if $(ADD),--add $(ADD))

bench: $(SETUP)  ## speed and memory beside nn.LSTM, nn.GRU and the loop: table and JSON
	$(BIN)/lem bench --also memory modes lengths odd growth small streaming --json benchmarks/results/bench.json

native-test: $(SETUP)  ## the stand-alone C++ test: every target, then again under the sanitizers
	cmake -S . -B build/test -DLEM_TESTS=ON > /dev/null && cmake --build build/test --target test_lem && build/test/test_lem
	cmake -S . -B build/sanitize -DLEM_TESTS=ON -DLEM_SANITIZE=ON > /dev/null && cmake --build build/sanitize --target test_lem
	ASAN_OPTIONS=detect_leaks=0 build/sanitize/test_lem quick

native-threads:  ## the C++ test of threads under the thread sanitizer, with std::thread instead of OpenMP
	cmake -S . -B build/threads -DLEM_TESTS=ON -DLEM_SANITIZE_THREADS=ON > /dev/null && cmake --build build/threads --target test_lem
	build/threads/test_lem interrupt

native-valgrind:  ## the C++ test on one thread under valgrind, with its check for leaks; valgrind's processor has AVX2
	cmake -S . -B build/test -DLEM_TESTS=ON > /dev/null && cmake --build build/test --target test_lem
	valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,indirect build/test/test_lem alone

test-dev: $(SETUP)  ## tests in Python's development mode with every warning an error; ROOM=tests/kernels for a part
	PYTHONWARNINGS=error $(BIN)/python -X dev -m pytest -q -m "not slow and not paper and not gpu_code" $(or $(ROOM),tests)

native-aarch64:  ## the C++ test for aarch64, emulated; Debian: apt install g++-aarch64-linux-gnu qemu-user
	cmake -S . -B build/aarch64 -DLEM_TESTS=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ > /dev/null && cmake --build build/aarch64
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/test_lem quick

native-avx512:  ## the C++ test on an emulated processor with AVX-512; Debian's packages are named in the script
	tools/emulate_avx512.sh

dist: $(SETUP)  ## sdist, and from it the wheel, into dist/: built in an environment of its own, without torch
	@rm -rf dist && mkdir -p build
	$(BIN)/python -m build --outdir dist . > build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@ls dist/*

wheel-test: dist  ## install what was built as a stranger would, and use it; QUICK=--quick leaves out the sdist
	$(BIN)/python tools/try_package.py dist $(QUICK)

peers: $(SETUP)  ## small fits in other libraries with LEM in the LSTM's place; NAMES="skorch ..." for some of them
	$(BIN)/python tools/peers.py $(NAMES)

fuzz: $(SETUP)  ## every reader under coverage-guided fuzzing, RUNS inputs each
	@$(BIN)/python -c "import atheris" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt atheris
	$(BIN)/python tools/fuzz.py --runs $(or $(RUNS),4000)

fuzz-kernels: $(SETUP)  ## the kernels against the loop in float64 on RUNS random problems, for two minutes at most
	$(BIN)/python tools/fuzz_kernels.py --runs $(or $(RUNS),1000) --minutes $(or $(MINUTES),2)

check-all: check fuzz-kernels test-slow gpu-code native-test docs wheel-test fuzz
