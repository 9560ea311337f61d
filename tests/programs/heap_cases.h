/* Small functions by their names, each with and without its error, in the order in which they stand (heap_cases.cc, heap_far.cc). */
#pragma once

struct Case {
	const char *name, *word;
	void (*run)(bool bad);
	Case *next;
	static Case *first, **last;
	Case(const char *name, const char *word, void (*run)(bool)) : name(name), word(word), run(run), next(nullptr)
	{
		*last = this;
		last = &next;
	}
};
Case *Case::first, **Case::last = &Case::first;
