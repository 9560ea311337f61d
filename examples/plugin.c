/* Loaded by plugins.c while it runs. */
int plugin_state = 1;

int plugin_step(int by)
{
	plugin_state += by;
	return plugin_state;
}
