/* Structures, unions, bit-fields, arrays of structures, single bytes of words. */
#include <stdio.h>
#include <string.h>

struct flags {
	unsigned ready : 1, dirty : 1, level : 6, spare : 8, count : 16;
};
struct box {
	long id;
	struct flags flags;
	char name[12];
	double weight;
	struct { short x, y; } corner[3];
	union { int as_int; float as_float; unsigned char bytes[4]; } value;
};

struct box box = { .id = 1, .name = "first" };
struct box shelf[4];
struct box *chosen = &shelf[2];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	ready();
	box.id = 2;
	box.flags.ready = 1;
	box.flags.dirty = 1; /* same byte as ready and level */
	box.flags.level = 33;
	box.flags.count = 777;
	strcpy(box.name, "second");
	box.weight = 2.5;
	box.corner[1].y = -4;
	box.value.as_float = 1.0f;
	box.value.bytes[3] = 0x40; /* 1.0 becomes 4.0 */
	shelf[1].id = 10;
	chosen->id = 20;
	chosen = &shelf[3];
	chosen->id = 30;
	shelf[0] = box;
	printf("structs: %ld %u %u %s %.1f %d %.1f %ld %ld\n", box.id, box.flags.level,
	       box.flags.count, box.name, box.weight, box.corner[1].y, box.value.as_float,
	       shelf[2].id, shelf[3].id);
	return 0;
}
