import { Trans, useLingui } from '@lingui/react/macro';
import { mayOnNode, useCaller } from '../../api/session';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { About } from './about';
import { Backup } from './backup';
import { Limits } from './limits';
import { Listeners } from './listeners';
import { LogLevel } from './log-level';
import { Quarantine } from './quarantine';
import { SettingsList } from './settings-list';

export default function SettingsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const isAdmin = mayOnNode(caller, 'admin');
  return (
    <Page title={t`Settings`} description={<Trans>How this node is configured.</Trans>}>
      <PageTabs
        tabs={[
          { id: 'settings', label: <Trans>Settings</Trans>, content: <SettingsList /> },
          { id: 'listeners', label: <Trans>Listeners and certificates</Trans>, content: <Listeners /> },
          { id: 'limits', label: <Trans>Limits</Trans>, content: <Limits /> },
          { id: 'log', label: <Trans>Log level</Trans>, isPermitted: isAdmin, content: <LogLevel /> },
          { id: 'backup', label: <Trans>Backup</Trans>, isPermitted: isAdmin, content: <Backup /> },
          { id: 'quarantine', label: <Trans>Damaged files</Trans>, content: <Quarantine /> },
          { id: 'about', label: <Trans>About</Trans>, content: <About /> },
        ]}
      />
    </Page>
  );
}
