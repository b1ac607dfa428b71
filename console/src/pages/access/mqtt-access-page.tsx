import { Tabs } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { Page } from '../../ui/page';
import { useUrlState } from '../../ui/url-state';
import { AccessCheck } from './access-check';
import { AclRules } from './acl-rules';
import { Authenticators } from './authenticators';
import { Bans } from './bans';
import { DeniedActions } from './denied-actions';
import { MqttUsers } from './mqtt-users';

/** Who may connect by MQTT, and what they may do. */
export default function MqttAccessPage() {
  const { t } = useLingui();
  const [tab, setTab] = useUrlState('tab', 'users');
  return (
    <Page title={t`MQTT access`} description={<Trans>Which clients may connect, and which topics they may use.</Trans>}>
      <Tabs value={tab} onChange={(value) => setTab(value ?? 'users')} keepMounted={false}>
        <Tabs.List>
          <Tabs.Tab value="users">
            <Trans>Users</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="authenticators">
            <Trans>Authenticators</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="rules">
            <Trans>Permissions</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="check">
            <Trans>Check</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="denied">
            <Trans>Denied actions</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="bans">
            <Trans>Bans</Trans>
          </Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="users" pt="md">
          <MqttUsers />
        </Tabs.Panel>
        <Tabs.Panel value="authenticators" pt="md">
          <Authenticators />
        </Tabs.Panel>
        <Tabs.Panel value="rules" pt="md">
          <AclRules />
        </Tabs.Panel>
        <Tabs.Panel value="check" pt="md">
          <AccessCheck />
        </Tabs.Panel>
        <Tabs.Panel value="denied" pt="md">
          <DeniedActions />
        </Tabs.Panel>
        <Tabs.Panel value="bans" pt="md">
          <Bans />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}
