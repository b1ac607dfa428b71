import { Trans, useLingui } from '@lingui/react/macro';
import { Link } from 'wouter';
import { Page } from '../ui/page';
import { EmptyState } from '../ui/states';

export function NotFoundPage() {
  const { t } = useLingui();
  return (
    <Page title={t`Not found`}>
      <EmptyState title={<Trans>There is no page at this address</Trans>}>
        <Link href="/" className="link">
          <Trans>Go to the home page</Trans>
        </Link>
      </EmptyState>
    </Page>
  );
}
