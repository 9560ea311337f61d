// std::map under 16 threads, with exceptions, strings and shared state behind a mutex.
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::map<std::string, long> table;
static std::mutex lock;
std::atomic<long> thrown{0};
std::vector<std::unique_ptr<long>> cells;

extern "C" __attribute__((noinline)) void ready() { __asm__ volatile(""); }

static long risky(int n)
{
	if (n % 7 == 0)
		throw std::runtime_error("seven " + std::to_string(n));
	return n;
}

static void worker(int id)
{
	for (int i = 1; i <= 2000; i++) {
		try {
			long value = risky(i + id);
			std::lock_guard<std::mutex> guard(lock);
			table["key" + std::to_string((i * 31 + id) % 500)] += value;
			*cells[(i + id) % cells.size()] += 1;
		} catch (const std::runtime_error &error) {
			thrown += static_cast<long>(std::string(error.what()).size());
		}
	}
}

int main()
{
	for (int i = 0; i < 400; i++)
		cells.push_back(std::make_unique<long>(0));
	ready();
	std::vector<std::thread> threads;
	for (int id = 0; id < 16; id++)
		threads.emplace_back(worker, id);
	for (auto &thread : threads)
		thread.join();
	long sum = 0, writes = 0;
	for (const auto &[key, value] : table)
		sum = sum * 31 + value + static_cast<long>(key.size());
	for (const auto &cell : cells)
		writes += *cell;
	std::printf("cpp_map: %zu keys, sum %lx, thrown %ld, writes %ld\n", table.size(), sum, thrown.load(), writes);
}
