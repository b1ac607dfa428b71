/** The tests in a browser. The test program `crates/tidegate/tests/console` starts them, and says where the node's program is. */

import { lingui } from '@lingui/vite-plugin';
import { defineConfig } from 'vitest/config';
import { linguiMacros } from '../vite.config.ts';

export default defineConfig({
  plugins: [linguiMacros(), lingui()],
  test: {
    include: ['tests/**/*.browser.ts'],
    reporters: ['./tests/support/reporter.ts'],
    pool: 'forks',
    // Each file has a node and a browser of its own.
    maxWorkers: 2,
    // For a machine that is busy with other tests.
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
