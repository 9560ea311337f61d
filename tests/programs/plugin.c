/* Loaded by plugins.c while it runs. */
int plugin_state = 1;

int plugin_step(int by)
{
	plugin_state += by;
	return plugin_state;
}

void plugin_call(void (*back)(void))
{
	back();
	plugin_state++;
}

/* Writes to what is not its own. */
void plugin_note(int *where)
{
	*where += 1;
}
