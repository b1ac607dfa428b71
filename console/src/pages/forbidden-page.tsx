import { Trans, useLingui } from '@lingui/react/macro';
import { Page } from '../ui/page';
import { Forbidden } from '../ui/states';

/** Instead of a page about the whole node, for those who have roles in namespaces only. */
export function ForbiddenPage() {
  const { t } = useLingui();
  return (
    <Page title={t`No access`}>
      <Forbidden>
        <Trans>This page shows the whole node; your roles are in namespaces.</Trans>
      </Forbidden>
    </Page>
  );
}
