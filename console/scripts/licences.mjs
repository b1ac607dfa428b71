// Fails if a package of the console, except those of tests and builds, has a licence that deny.toml does not allow.
import { readFileSync } from 'node:fs';

/** Other licences that suit, by package, with the reason. */
const exceptions = {
  // Dependencies of Lingui's macro, which runs in builds only; no page contains them.
  argparse: 'Python-2.0',
  'caniuse-lite': 'CC-BY-4.0',
  // Dedicated to the public.
  wouter: 'Unlicense',
};

const deny = readFileSync('../deny.toml', 'utf8');
const list = /^allow = \[(.*?)^\]/ms.exec(deny)?.[1];
if (list === undefined) throw new Error('deny.toml has no list "allow" of licences');
const allowed = new Set([...list.matchAll(/"([^"]+)"/g)].map(([, name]) => name));

/** Whether an SPDX expression without nested brackets permits the use: one alternative of OR, all parts of AND. */
const permits = (expression) =>
  expression
    .replace(/^\((.*)\)$/, '$1')
    .split(' OR ')
    .some((choice) => choice.split(' AND ').every((name) => allowed.has(name.trim())));

const { packages } = JSON.parse(readFileSync('package-lock.json', 'utf8'));
const used = Object.entries(packages).filter(([path, { dev }]) => path !== '' && !dev);
const unused = new Set(Object.keys(exceptions));
const problems = [];
for (const [path, { license }] of used) {
  const name = path.replace(/^.*node_modules\//, '');
  if (license !== undefined && permits(license)) continue;
  if (license !== undefined && exceptions[name] === license) unused.delete(name);
  else problems.push(`${name}: ${license ?? 'no licence'}`);
}
if (used.length === 0) throw new Error('package-lock.json lists no packages');
if (problems.length > 0) throw new Error(`licences that deny.toml does not allow: ${problems.join('; ')}`);
if (unused.size > 0) throw new Error(`exceptions without a package of this licence: ${[...unused].join(', ')}`);
