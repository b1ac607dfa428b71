import '@mantine/core/styles.css';
import '@mantine/notifications/styles.css';
import '@mantine/spotlight/styles.css';
import './styles.css';

import { MantineProvider } from '@mantine/core';
import { Notifications } from '@mantine/notifications';
import { I18nProvider } from '@lingui/react';
import { QueryClientProvider } from '@tanstack/react-query';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { App, kioskPath } from './app';
import { queryClient } from './api/client';
import { onCallerChange, startSession } from './api/session';
import { i18n, loadPreferredLanguage } from './i18n';
import { cssVariables, theme } from './theme';

const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? '';
// Where the library that locks scrolling below dialogs looks for it.
(globalThis as { __webpack_nonce__?: string }).__webpack_nonce__ = nonce;
const root = document.getElementById('root');

await loadPreferredLanguage();
onCallerChange(() => queryClient.clear());
// Who opens a share link need not have an account.
if (location.pathname !== kioskPath) void startSession();

if (root) {
  createRoot(root).render(
    <StrictMode>
      <I18nProvider i18n={i18n}>
        <MantineProvider
          theme={theme}
          cssVariablesResolver={cssVariables}
          defaultColorScheme="auto"
          getStyleNonce={() => nonce}
        >
          <QueryClientProvider client={queryClient}>
            <Notifications position="bottom-right" />
            <App />
          </QueryClientProvider>
        </MantineProvider>
      </I18nProvider>
    </StrictMode>,
  );
}
