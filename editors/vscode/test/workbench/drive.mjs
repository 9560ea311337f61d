// SPDX-License-Identifier: MIT OR Apache-2.0
/**
 * Leads a session in a real VS Code workbench: code-server, in headless Chromium.
 *
 *     node drive.mjs CODE_SERVER CHROMIUM ULPF FOLDER
 *
 * FOLDER is a workspace with orders.c and its program; the extension is installed in FOLDER/../extensions.
 * Pictures go to FOLDER/../pictures, what was seen to standard output as JSON.
 */
import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import * as path from 'node:path';
import { chromium } from 'playwright-core';

const [codeServer, browserPath, ulpf, folder] = process.argv.slice(2);
const base = path.dirname(folder);
const PATIENCE = 30_000;
const seen = {};

async function freePort() {
  const server = createServer();
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise(resolve => server.close(resolve));
  return port;
}

function configure() {
  const settings = {
    'ulpf.path': ulpf, 'workbench.startupEditor': 'none', 'window.commandCenter': false,
    'chat.commandCenter.enabled': false, 'editor.minimap.enabled': false,
  };
  const launch = {
    version: '0.2.0',
    configurations: [{
      type: 'ulpf', request: 'launch', name: 'Debug with ulpf', program: '${workspaceFolder}/orders',
      console: 'internalConsole', stopOnEntry: true,
    }],
  };
  mkdirSync(path.join(folder, '.vscode'), { recursive: true });
  writeFileSync(path.join(folder, '.vscode/settings.json'), JSON.stringify(settings));
  writeFileSync(path.join(folder, '.vscode/launch.json'), JSON.stringify(launch));
  mkdirSync(path.join(base, 'pictures'), { recursive: true });
}

async function drive(page, port) {
  const picture = name => page.screenshot({ path: path.join(base, 'pictures', `${name}.png`) });
  const box = page.locator('.quick-input-widget input.input');
  const choose = async text => {
    await page.keyboard.press('F1');
    await box.waitFor();
    await page.keyboard.type(text);
    await page.locator('.quick-input-list .monaco-list-row', { hasText: text }).first().click();
  };
  // One box after the other; each is known by what it asks.
  const answer = async (title, text) => {
    await page.locator('.quick-input-title', { hasText: title }).waitFor();
    if (text !== undefined) {
      await box.fill(text);
    }
    await page.keyboard.press('Enter');
  };
  const row = text => page.locator('.monaco-list-row', { hasText: text }).first();

  await page.goto(`http://127.0.0.1:${port}/?folder=${encodeURIComponent(folder)}`);
  await page.locator('.monaco-workbench').waitFor();
  await row('orders.c').dblclick();
  await page.locator('.tab', { hasText: 'orders.c' }).waitFor();
  // What is pressed before launch.json has been read only opens the view.
  const toolbar = page.locator('.debug-toolbar');
  for (let tries = 0; tries < 10 && !await toolbar.isVisible(); tries++) {
    await page.keyboard.press('F5');
    await toolbar.waitFor({ timeout: 6000 }).catch(() => undefined);
  }
  await row('Globals of this file').waitFor();
  for (const name of ['Watch', 'Breakpoints', 'Loaded Scripts']) {
    const header = page.locator(`.pane-header[aria-label^="${name}"][aria-expanded="true"]`);
    if (await header.count()) {
      await header.first().click();
    }
  }
  const view = page.locator('.pane-header', { hasText: 'Data Watches' });
  if (await view.getAttribute('aria-expanded') === 'false') {
    await view.click();
  }

  await choose('ulpf: Log Writes');
  await answer('Log writes of', 'total');
  await answer('Condition for total', '');
  await row('total').waitFor();
  await choose('ulpf: Watch This Range');
  await answer('Watch', 'orders[0..64].amount');
  await answer('Stop at each');
  await answer('Condition for orders', '$new < 0');
  await row('orders[0..64].amount').waitFor();
  await page.keyboard.press('F5');

  const stack = page.locator('.pane-header', { hasText: 'Call Stack' }).locator('..');
  await stack.getByText('orders[17].amount: 19 → -1').waitFor();
  await page.locator('.monaco-list-row', { hasText: /total.*64 hits/ }).waitFor();
  seen.stopped = await stack.getByText('orders[17].amount').first().textContent();
  seen.line = await page.locator('.debug-top-stack-frame-line').count() > 0;
  seen.watches = await page.locator('.pane', { has: view }).locator('.monaco-list-row').allTextContents();
  seen.logged = await page.locator('.repl .monaco-list-row', { hasText: 'write  total' }).count() > 0;
  await picture('vscode');

  // The view is drawn anew after a stop: a click may come too early.
  const total = row('total =');
  for (let tries = 0; tries < 5 && !await total.isVisible(); tries++) {
    await row('Globals of this file').click();
    await total.waitFor({ timeout: 5000 }).catch(() => undefined);
  }
  await total.click({ button: 'right' });
  const menu = page.locator('.monaco-menu .action-label');
  await menu.first().waitFor();
  seen.menu = (await menu.allTextContents()).filter(Boolean);
  await picture('menu');
  await page.keyboard.press('Escape');
  await page.keyboard.press('Shift+F5');
  await toolbar.waitFor({ state: 'hidden' });
}

configure();
const port = await freePort();
const server = spawn(codeServer, [
  '--auth', 'none', '--bind-addr', `127.0.0.1:${port}`, '--disable-telemetry', '--disable-update-check',
  '--disable-workspace-trust',
  '--extensions-dir', path.join(base, 'extensions'), '--user-data-dir', path.join(base, 'user'),
], { stdio: ['ignore', 'pipe', 'inherit'], detached: true });
const listening = new Promise((resolve, reject) => {
  server.stdout.on('data', text => String(text).includes('server listening') && resolve());
  server.once('exit', status => reject(new Error(`code-server has ended with ${status}`)));
});
let browser;
try {
  await listening;
  browser = await chromium.launch({
    executablePath: browserPath,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--disable-background-networking', '--disable-sync'],
  });
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  page.setDefaultTimeout(PATIENCE);
  try {
    await drive(page, port);
  } catch (e) {
    await page.screenshot({ path: path.join(base, 'pictures', 'failed.png') });
    throw e;
  }
  console.log(JSON.stringify(seen));
} finally {
  await browser?.close();
  process.kill(-server.pid);
}
