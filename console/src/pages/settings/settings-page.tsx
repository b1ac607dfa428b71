import { Tabs } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { mayOnNode, useCaller } from '../../api/session';
import { Page } from '../../ui/page';
import { useUrlState } from '../../ui/url-state';
import { About } from './about';
import { Backup } from './backup';
import { Listeners } from './listeners';
import { LogLevel } from './log-level';
import { SettingsList } from './settings-list';

export default function SettingsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const isAdmin = mayOnNode(caller, 'admin');
  const [tab, setTab] = useUrlState('tab', 'settings');
  return (
    <Page title={t`Settings`} description={<Trans>How this node is configured.</Trans>}>
      <Tabs value={tab} onChange={(value) => setTab(value ?? 'settings')} keepMounted={false}>
        <Tabs.List>
          <Tabs.Tab value="settings">
            <Trans>Settings</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="listeners">
            <Trans>Listeners and certificates</Trans>
          </Tabs.Tab>
          {isAdmin && (
            <Tabs.Tab value="log">
              <Trans>Log level</Trans>
            </Tabs.Tab>
          )}
          {isAdmin && (
            <Tabs.Tab value="backup">
              <Trans>Backup</Trans>
            </Tabs.Tab>
          )}
          <Tabs.Tab value="about">
            <Trans>About</Trans>
          </Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="settings" pt="md">
          <SettingsList />
        </Tabs.Panel>
        <Tabs.Panel value="listeners" pt="md">
          <Listeners />
        </Tabs.Panel>
        <Tabs.Panel value="log" pt="md">
          <LogLevel />
        </Tabs.Panel>
        <Tabs.Panel value="backup" pt="md">
          <Backup />
        </Tabs.Panel>
        <Tabs.Panel value="about" pt="md">
          <About />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}
