#include <stdio.h>

struct order {
	int id;
	int amount;
};

static struct order orders[64];
static long total;
static int limit = 900;

static void book(struct order *o, int amount)
{
	o->amount = amount;
	total += amount;
}

int main(void)
{
	for (int i = 0; i < 64; i++) {
		orders[i].id = i + 1;
		book(&orders[i], i * 7 % 50);
	}
	orders[17].amount = -1; /* who does this? */
	printf("total %ld, limit %d\n", total, limit);
	return 0;
}
