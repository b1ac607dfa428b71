import { Tabs } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useCaller } from '../../api/session';
import { Page } from '../../ui/page';
import { useUrlState } from '../../ui/url-state';
import { ApiKeys } from './api-keys';
import { Invites } from './invites';
import { Namespaces } from './namespaces';
import { Operators } from './operators';

/** Who may use the API and this console. */
export default function PeoplePage() {
  const { t } = useLingui();
  const caller = useCaller();
  const isOnNode = caller.role !== null;
  const [tab, setTab] = useUrlState('tab', isOnNode ? 'people' : 'namespaces');
  return (
    <Page
      title={t`People and namespaces`}
      description={<Trans>Who may use the console and the API, and what belongs to whom.</Trans>}
    >
      <Tabs value={tab} onChange={(value) => setTab(value ?? 'people')} keepMounted={false}>
        <Tabs.List>
          {isOnNode && (
            <Tabs.Tab value="people">
              <Trans>People</Trans>
            </Tabs.Tab>
          )}
          <Tabs.Tab value="namespaces">
            <Trans>Namespaces</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="invites">
            <Trans>Invitations</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="keys">
            <Trans>API keys</Trans>
          </Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="people" pt="md">
          <Operators />
        </Tabs.Panel>
        <Tabs.Panel value="namespaces" pt="md">
          <Namespaces />
        </Tabs.Panel>
        <Tabs.Panel value="invites" pt="md">
          <Invites />
        </Tabs.Panel>
        <Tabs.Panel value="keys" pt="md">
          <ApiKeys />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}
