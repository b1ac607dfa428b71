import { defineConfig } from '@lingui/cli';

export default defineConfig({
  sourceLocale: 'en',
  locales: ['en', 'zh'],
  catalogs: [{ path: 'src/locales/{locale}', include: ['src'] }],
  orderBy: 'message',
  format: 'po',
  formatOptions: { origins: false, lineNumbers: false },
});
