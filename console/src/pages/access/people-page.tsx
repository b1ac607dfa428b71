import { Trans, useLingui } from '@lingui/react/macro';
import { mayOnNode, useCaller } from '../../api/session';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { ApiKeys } from './api-keys';
import { Invites } from './invites';
import { Namespaces } from './namespaces';
import { Operators } from './operators';

/** Who may use the API and this console. */
export default function PeoplePage() {
  const { t } = useLingui();
  const caller = useCaller();
  const isAdmin = mayOnNode(caller, 'admin');
  return (
    <Page
      title={t`People and namespaces`}
      description={<Trans>Who may use the console and the API, and what belongs to whom.</Trans>}
    >
      <PageTabs
        tabs={[
          { id: 'people', label: <Trans>People</Trans>, isPermitted: isAdmin, content: <Operators /> },
          { id: 'namespaces', label: <Trans>Namespaces</Trans>, content: <Namespaces /> },
          { id: 'invites', label: <Trans>Invitations</Trans>, content: <Invites /> },
          { id: 'keys', label: <Trans>API keys</Trans>, content: <ApiKeys /> },
        ]}
      />
    </Page>
  );
}
