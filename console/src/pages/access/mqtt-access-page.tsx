import { Trans, useLingui } from '@lingui/react/macro';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { AccessCheck } from './access-check';
import { AclRules } from './acl-rules';
import { Authenticators } from './authenticators';
import { Bans } from './bans';
import { DeniedActions } from './denied-actions';
import { MqttUsers } from './mqtt-users';

/** Who may connect by MQTT, and what they may do. */
export default function MqttAccessPage() {
  const { t } = useLingui();
  return (
    <Page title={t`MQTT access`} description={<Trans>Which clients may connect, and which topics they may use.</Trans>}>
      <PageTabs
        tabs={[
          { id: 'users', label: <Trans>Users</Trans>, content: <MqttUsers /> },
          { id: 'authenticators', label: <Trans>Authenticators</Trans>, content: <Authenticators /> },
          { id: 'rules', label: <Trans>Permissions</Trans>, content: <AclRules /> },
          { id: 'check', label: <Trans>Check</Trans>, content: <AccessCheck /> },
          { id: 'denied', label: <Trans>Denied actions</Trans>, content: <DeniedActions /> },
          { id: 'bans', label: <Trans>Bans</Trans>, content: <Bans /> },
        ]}
      />
    </Page>
  );
}
