import { brotliCompressSync, constants, gzipSync } from 'node:zlib';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { transformAsync } from '@babel/core';
import { lingui } from '@lingui/vite-plugin';
import react from '@vitejs/plugin-react';
import { defineConfig, type Plugin } from 'vite';

/** Where `npm run dev` finds a running node. */
const node = process.env.TIDEGATE_URL ?? 'http://127.0.0.1:8080';

/** Rewrites Lingui's macros. Babel does nothing else here: TypeScript and JSX are left to Vite. */
export function linguiMacros(): Plugin {
  return {
    name: 'lingui-macros',
    enforce: 'pre',
    async transform(code, id) {
      if (id.includes('node_modules') || !/\.tsx?$/.test(id) || !code.includes('/macro')) return null;
      const result = await transformAsync(code, {
        filename: id,
        babelrc: false,
        configFile: false,
        sourceMaps: true,
        parserOpts: { plugins: ['typescript', 'jsx'] },
        plugins: ['@lingui/babel-plugin-lingui-macro'],
      });
      return result?.code ? { code: result.code, map: result.map } : null;
    },
  };
}

/** Writes each file of the build in two more forms, which the node embeds and sends as they are. */
function compressed(): Plugin {
  let folder = '';
  return {
    name: 'compressed',
    apply: 'build',
    configResolved(config) {
      folder = join(config.root, config.build.outDir);
      if (config.build.outDir.startsWith('/')) folder = config.build.outDir;
    },
    closeBundle() {
      for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || entry.name === 'index.html') continue;
        const path = join(entry.parentPath, entry.name);
        const content = readFileSync(path);
        const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: content.length };
        writeFileSync(`${path}.br`, brotliCompressSync(content, { params }));
        writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  plugins: [linguiMacros(), react(), lingui(), compressed()],
  build: {
    target: 'es2022',
    // The first versions with `light-dark()`; Vite would replace it by something that ignores the switch of themes.
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    // The policy of the page forbids inline scripts, which the polyfill would be.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 900,
  },
  server: {
    proxy: Object.fromEntries(
      ['/api', '/metrics', '/healthz', '/readyz'].map((path) => [
        path,
        // The node rejects changes by pages of other origins, which a page of this server would be.
        { target: node, changeOrigin: true, ws: true, headers: { origin: node } },
      ]),
    ),
  },
});
